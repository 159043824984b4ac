"""Takes out of a text what tells who, where or which specimen a machine is, and leaves what tells how it is.

Taken out: names of the host, of hosts and domains that it knows, and of people's accounts, paths below home folders,
addresses of networks, mail and interfaces, serial numbers, the machine's identity, and secrets (`doctor.secrets`).
Rather too much is taken out than too little; what identifies nobody (loopback, `nvidia`, which every board has) stays,
so that a text can still be read.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pwd
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.lifecycle.doctor.secrets import REDACTED, is_secret_name, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orin_rerank.board.paths import BoardPaths

__all__ = ["Redactor", "redactor_of"]

_STOCK_NAMES: Final = frozenset(
    ("debian", "jetson", "localhost", "nobody", "nvidia", "orin", "orin-rerank", "root", "tegra-ubuntu", "ubuntu")
)
"""Names that boards come with."""

_SERIALS: Final = (
    "/proc/device-tree/serial-number",
    "/sys/class/dmi/id/product_serial",
    "/sys/class/dmi/id/board_serial",
    "/sys/class/dmi/id/chassis_serial",
    "/sys/class/dmi/id/product_uuid",
    "/sys/class/nvme/*/serial",
    "/sys/block/*/device/serial",
    "/sys/block/mmcblk*/device/cid",
)
_FIRST_PERSON: Final = 1000
_NO_HOMES: Final = ("/var/lib/orin-rerank", "/nonexistent", "/usr", "/bin", "/sbin")
_SHORTEST: Final = 2
"""A name of one letter would be found everywhere."""
_DISTINCT: Final = 5
"""A name as long as this is taken out of longer ones, too, as of `alice-laptop`; `agx` would be found everywhere."""

_REST: Final = r"(?:[^\s\"'<>|]| (?=[^\s\"'<>|:/]+/))*"
"""Of a path, up to what ends it in a text: a space ends it unless a path goes on behind the next word."""
_ANY_HOME: Final = r"/home/[^\s\"'<>|/]+"
_MAIL: Final = re.compile(r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+\b")
_SERIAL: Final = re.compile(r"(?i)(\b(?:serial(?:[ _-]?(?:no|nr|number))?|s/n)\b[\"']?\s*[:=#]\s*[\"']?)[\w-]*\d[\w-]*")
_MAC: Final = re.compile(r"(?<![0-9A-Fa-f:])[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}(?![0-9A-Fa-f:])")
_INTERFACE: Final = re.compile(r"\b((?:en|wl|ww)x)[0-9a-f]{12}\b")
"""Named by its address."""
_UUID: Final = re.compile(r"(?i)\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b")
_IDENTITY: Final = re.compile(r"(?i)(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
"""machine-id and its like; digests of ours have 64 digits, or 12."""
_IPV4: Final = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w)")
_OF_A_VERSION: Final = re.compile(
    r"(?i)(?<![a-z])(?:version|cuda|cudnn|onnxruntime|tensorrt|nvidia|lib[a-z])[\w.+-]*[\s:=(]{1,8}$"
)
"""What stands before four numbers that are no address."""
_IPV6: Final = re.compile(
    r"(?<![\w:.])(?=[0-9A-Fa-f.]{0,39}:[0-9A-Fa-f.]{0,39}:)[0-9A-Fa-f:.]{2,64}(?:%\w{1,16})?(?![\w:])"
)


_VERSION: Final = re.compile(r"\d+(?:\.\d+)+")
_VERSION_KEY: Final = re.compile(r"(?i)(?:[\w-]*[_-])?(?:version|release)|tensorrt[\w-]*|onnxruntime[\w-]*")


@dataclass(frozen=True, slots=True)
class Redactor:
    """Takes out what identifies, and what is secret.

    Attributes:
        words: What stands for whole words, by these, whatever their case; of two that overlap the longer one counts.
        homes: Folders of people; whatever lies below goes with them.
    """

    words: Mapping[str, str]
    homes: tuple[str, ...] = ()

    def text(self, text: str) -> str:
        """A text without it."""
        text = self._without_homes(without_secrets(text))
        for word in sorted(self.words, key=lambda word: (-len(word), word)):
            inner = "A-Za-z0-9" if len(word) >= _DISTINCT else r"\w-"
            whole = rf"(?<![{inner}]){re.escape(word)}(?![{inner}])"
            text = re.sub(whole, self.words[word], text, flags=re.IGNORECASE)
        text = _MAIL.sub("<mail>", _SERIAL.sub(r"\1<serial>", text))
        text = _INTERFACE.sub(r"\1<mac>", text)
        for pattern, placeholder in ((_UUID, "<id>"), (_IDENTITY, "<id>"), (_MAC, "<mac>")):
            text = pattern.sub(placeholder, text)
        text = _IPV4.sub(_ipv4, text)
        return _IPV6.sub(lambda match: _address(match[0], "<ipv6>"), text)

    def value(self, value: object, name: str = "") -> object:
        """A value of JSON without it, keys included.

        Args:
            value: The value.
            name: What it goes by; what goes by the name of a secret is taken out whole.
        """
        if is_secret_name(name) and value and not isinstance(value, bool):
            return REDACTED
        if isinstance(value, str):
            is_version = _VERSION_KEY.fullmatch(name) and _VERSION.fullmatch(value)  # four numbers are no address then
            return value if is_version else self.text(value)
        if isinstance(value, dict):
            # Of a setting, or a variable, that stands in a list.
            named = str(value.get("name", "")) if "value" in value else ""
            return {
                self.text(str(key)): self.value(one, named if key == "value" and is_secret_name(named) else str(key))
                for key, one in value.items()
            }
        if isinstance(value, (list, tuple)):
            options = [one.removeprefix("--") if isinstance(one, str) and one.startswith("--") else "" for one in value]
            return [self.value(one, option) for one, option in zip(value, ["", *options], strict=False)]
        return value

    def _without_homes(self, text: str) -> str:
        places = [re.escape(home) for home in sorted(self.homes, key=len, reverse=True)]
        home = rf"(?:{'|'.join([*places, _ANY_HOME])})"
        text = re.sub(rf"(?P<quote>[\"']){home}(?:/[^\n]*?)?(?P=quote)", r"\g<quote><home>\g<quote>", text)
        return re.sub(rf"(?<![\w.-]){home}(?:/{_REST})?(?![\w-])", "<home>", text)


def redactor_of(paths: BoardPaths, extra: Mapping[str, str] | None = None) -> Redactor:
    """One that knows this machine: its names, accounts and numbers.

    Args:
        paths: The board.
        extra: Further words and what stands for them.
    """
    words: dict[str, str] = {}
    homes: set[str] = set()

    def add(word: str | None, placeholder: str) -> None:
        if word and len(word) >= _SHORTEST and word.lower() not in _STOCK_NAMES:
            words.setdefault(word, placeholder)

    for host in (paths.text("/etc/hostname") or "", socket.gethostname(), *_known_hosts(paths)):
        add(host, "<host>")
        add(host.partition(".")[0], "<host>")
    for domain in _domains(paths):
        add(domain, "<domain>")
    for place in (found for pattern in _SERIALS for found in paths.glob(pattern)):
        number = paths.text(place) or ""
        # Firmware that knows none says 0, `None`, `To be filled by O.E.M.` or the like.
        add(number if set(number) & set("123456789") else None, "<serial>")
    for file in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        add(paths.text(file), "<id>")
    for account in _people():
        add(account.pw_name, "<user>")
        if account.pw_dir not in ("", "/") and not account.pw_dir.startswith(_NO_HOMES):
            homes.add(account.pw_dir.rstrip("/"))
    words.update({word: placeholder for word, placeholder in (extra or {}).items() if word})
    return Redactor(words, tuple(sorted(homes)))


def _people() -> list[pwd.struct_passwd]:
    """Accounts of people, and of who asks. Those that a server knows are in no list, and are found by their number."""
    numbers = {os.geteuid(), *(int(one) for one in [os.environ.get("SUDO_UID", "")] if one.isdecimal())}
    found = [one for one in pwd.getpwall() if one.pw_uid >= _FIRST_PERSON and one.pw_name != "nobody"]
    for number in numbers:
        with contextlib.suppress(KeyError, OverflowError):
            found.append(pwd.getpwuid(number))
    return found


def _known_hosts(paths: BoardPaths) -> list[str]:
    """Names in /etc/hosts but those that every machine has there."""
    lines = (line.partition("#")[0].split()[1:] for line in (paths.text("/etc/hosts") or "").splitlines())
    return [name for names in lines for name in names if not name.startswith(("localhost", "ip6-"))]


def _domains(paths: BoardPaths) -> list[str]:
    """Domains that names are looked up in."""
    lines = (line.split() for line in (paths.text("/etc/resolv.conf") or "").splitlines())
    return [name for words in lines if words[:1] in (["search"], ["domain"]) for name in words[1:] if "." in name[1:-1]]


def _ipv4(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 48) : match.start()]
    return match[0] if _OF_A_VERSION.search(before) else _address(match[0], "<ipv4>")


def _address(found: str, placeholder: str) -> str:
    """What stands for an address; those that every machine has, and what is none, stay."""
    bare = found.partition("%")[0]
    for text in (bare, bare.rstrip(":.")):
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            continue
        if address.is_loopback or address.is_unspecified:
            return found
        return placeholder + bare[len(text) :]
    return found

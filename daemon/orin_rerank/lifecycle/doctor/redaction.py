"""Takes out of a text what tells who, where or which specimen a machine is, and leaves what tells how it is.

Taken out: names of the host and of people's accounts, paths below home folders, addresses of networks, mail and
interfaces, serial numbers, the machine's identity, anything that is called a password or a token. Rather too much is
taken out than too little; what identifies nobody (loopback, `nvidia`, which every board has) stays, so that a text
can still be read.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
)
_FIRST_PERSON: Final = 1000
_NO_HOMES: Final = ("/var/lib/orin-rerank", "/nonexistent", "/usr", "/bin", "/sbin")
_SHORTEST: Final = 2
"""A name of one letter would be found everywhere."""

_REST: Final = r"[^\s\"'<>|]*"
"""Of a path, up to what ends it in a text."""
_HOME: Final = re.compile(rf"/home/{_REST}")
_MAIL: Final = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/\s]+@")
_SECRET: Final = re.compile(
    r"(?i)((?<![\w-])(?:[\w-]*[_-])?(?:pass(?:word|wd|phrase)?|secret|credentials?|(?:api|private|secret)[_-]?key|\w*token)"
    r"\b[\"']?\s*[=:]\s*|(?<![\w-])--(?:[\w-]+-)?(?:password|secret|token)\s+|\bbearer\s+|\bauthorization:\s*basic\s+)"
    r"(?:\"[^\"\n]*\"|'[^'\n]*'|[\"']?[^\s\"',]+)"
)
"""By its name, whatever stands before that: `HF_TOKEN=`, `"db_password": "two words"`; `tokens` are something else."""
_MAC: Final = re.compile(r"(?<![0-9A-Fa-f:])[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}(?![0-9A-Fa-f:])")
_UUID: Final = re.compile(r"(?i)\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b")
_IDENTITY: Final = re.compile(r"(?i)(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
"""machine-id and its like; digests of ours have 64 digits, or 12."""
_IPV4: Final = re.compile(
    r"(?<![\w.])(?<!tensorrt )(?<!tensorrt_rtx )(?<![Vv]ersion )\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w)"
)
"""Four numbers may be a version, too."""
_IPV6: Final = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%\w+)?(?![\w:])")


@dataclass(frozen=True, slots=True)
class Redactor:
    """Takes out what identifies.

    Attributes:
        words: What stands for whole words, by these, whatever their case; of two that overlap the longer one counts.
        homes: Folders of people; whatever lies below goes with them.
    """

    words: Mapping[str, str]
    homes: tuple[str, ...] = ()

    def text(self, text: str) -> str:
        """A text without it."""
        for home in sorted(self.homes, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.-]){re.escape(home)}(?:/{_REST})?(?![\w-])", "<home>", text)
        text = _HOME.sub("<home>", text)
        for word in sorted(self.words, key=lambda word: (-len(word), word)):
            text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", self.words[word], text, flags=re.IGNORECASE)
        text = _CREDENTIALS.sub("<redacted>@", text)
        text = _SECRET.sub(r"\1<redacted>", text)
        text = _MAIL.sub("<mail>", text)
        for pattern, placeholder in ((_UUID, "<id>"), (_IDENTITY, "<id>"), (_MAC, "<mac>")):
            text = pattern.sub(placeholder, text)
        text = _IPV4.sub(lambda match: _address(match[0], "<ipv4>"), text)
        return _IPV6.sub(lambda match: _address(match[0], "<ipv6>"), text)

    def value(self, value: object) -> object:
        """A value of JSON without it, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(one) for one in value]
        return value


def redactor_of(paths: BoardPaths, extra: Mapping[str, str] | None = None) -> Redactor:
    """One that knows this machine: its names, accounts and numbers.

    Args:
        paths: The board.
        extra: Further words and what stands for them.
    """
    words: dict[str, str] = {}
    homes: set[str] = set()

    def add(word: str | None, placeholder: str) -> None:
        # Firmware that knows no serial number says 0, or the like.
        if word and len(word) >= _SHORTEST and word.lower() not in _STOCK_NAMES and not set(word) <= set("0- "):
            words.setdefault(word, placeholder)

    for host in (paths.text("/etc/hostname"), socket.gethostname()):
        add(host, "<host>")
        add(host and host.partition(".")[0], "<host>")
    for file in _SERIALS:
        add(paths.text(file), "<serial>")
    for file in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        add(paths.text(file), "<id>")
    for account in pwd.getpwall():
        person = account.pw_uid >= _FIRST_PERSON and account.pw_name != "nobody"
        if person or account.pw_uid == os.geteuid():
            add(account.pw_name, "<user>")
            if account.pw_dir not in ("", "/") and not account.pw_dir.startswith(_NO_HOMES):
                homes.add(account.pw_dir.rstrip("/"))
    words.update({word: placeholder for word, placeholder in (extra or {}).items() if word})
    return Redactor(words, tuple(sorted(homes)))


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

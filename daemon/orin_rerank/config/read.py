"""Reads the settings file and the environment.

A value in the environment, such as `ORIN_RERANK__SERVER__MAX_DOCUMENTS=500`, goes before one in the file.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from orin_rerank.config.file import VARIABLE_PREFIX, read_file, value_of
from orin_rerank.config.sections import SECTIONS, Settings, keys_of
from orin_rerank.errors import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["read_settings"]

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", re.IGNORECASE)
_BARE_KEY: Final = r"(?:{0}|\"{0}\"|'{0}')"
_TOML_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)$")

_KINDS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "bool": ((bool,), "true or false"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "text in quotes"),
    "Path": ((str,), "a path in quotes"),
}
"""By the type of a setting: what TOML may have for it, and what that is called."""

_CALLED: Final = {"socket_mode": "permission bits, such as 0o660"}
"""Where there is a better word."""


def read_settings(file: Path | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Reads and checks all settings.

    Args:
        file: The settings file; None takes defaults.
        environment: Where overriding variables are looked for.

    Raises:
        SettingsError: If the file cannot be read or is no TOML, a section or key is unknown, or a value is wrong; the
            item names the file with the line, or the variable, and the message says what is possible.
    """
    return _Reader(file, environment).read()


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    value: Any
    source: str
    of_file: bool = True


class _Reader:
    def __init__(self, file: Path | None, environment: Mapping[str, str]) -> None:
        self._file = file
        self._environment = environment
        self._text = ""

    def read(self) -> Settings:
        found: dict[str, dict[str, _Found]] = {section: {} for section in SECTIONS}
        if self._file is not None:
            self._read_file(self._file, found)
        self._read_environment(found)
        sections = {section: self._section(section, values) for section, values in found.items()}
        sources = {
            f"{section}.{key}": entry.source for section, values in found.items() for key, entry in values.items()
        }
        return Settings(**sections, sources=sources)

    def _read_file(self, file: Path, found: dict[str, dict[str, _Found]]) -> None:
        content = self._parsed(file)
        for section, values in content.items():
            if section not in SECTIONS:
                self._unknown(f"section [{section}]", section, SECTIONS, self._where(section))
            if isinstance(values, list):
                raise SettingsError(f"there is one section {section}: write [{section}]", item=self._where(section))
            if not isinstance(values, dict):
                raise SettingsError(f"{section} is a section: write [{section}]", item=self._where(section))
            for key, value in values.items():
                if key not in keys_of(section):
                    self._unknown(f"key {key} in [{section}]", key, keys_of(section), self._where(section, key))
                found[section][key] = _Found(value, self._where(section, key))

    def _parsed(self, file: Path) -> dict[str, Any]:
        try:
            data = read_file(file)
        except OSError as error:
            raise SettingsError(f"cannot be read: {error.strerror}", item=str(file)) from None
        try:
            self._text = data.decode()
            return tomllib.loads(self._text)
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise SettingsError("is not UTF-8", item=f"{file}:{line}") from None
        except tomllib.TOMLDecodeError as error:
            at = _TOML_LINE.search(str(error))
            where = str(file) if at is None else f"{file}:{at[1]}"
            raise SettingsError(f"is no TOML: {_TOML_LINE.sub('', str(error))}", item=where) from None
        except RecursionError:
            raise SettingsError("is no TOML: it is nested too deeply", item=str(file)) from None

    def _read_environment(self, found: dict[str, dict[str, _Found]]) -> None:
        for name, text in self._environment.items():
            if not name.startswith(VARIABLE_PREFIX):
                continue
            section, _, key = name.removeprefix(VARIABLE_PREFIX).lower().partition("__")
            if section not in SECTIONS:
                self._unknown(f"section {section}", section, SECTIONS, name)
            if not key:
                known = ", ".join(keys_of(section))
                raise SettingsError(f"names no setting: write {name}__KEY; there are {known}", item=name)
            if key not in keys_of(section):
                self._unknown(f"key {key} in {section}", key, keys_of(section), name)
            found[section][key] = _Found(value_of(text), name, of_file=False)

    def _section(self, section: str, found: dict[str, _Found]) -> Any:
        # The engine's settings name it; to import it takes as long as everything else here, so not for `--help`.
        from orin_rerank.graph.builder import Dialect  # noqa: F401, PLC0415 - pydantic looks for it among the locals

        types = {entry.name: str(entry.type) for entry in dataclasses.fields(SECTIONS[section])}
        values = {key: _suited(key, types[key], entry) for key, entry in found.items()}
        try:
            return TypeAdapter(SECTIONS[section]).validate_python(values)
        except ValidationError as error:
            first = error.errors()[0]
            key = str(first["loc"][0])
            _, called = _kind(types[key])
            should_be = _plainly(first["msg"]) if called is None else f"should be {called}"
            raise SettingsError(f"{key}: {should_be}", item=found[key].source) from None
        except SettingsError as error:
            source = found[error.item].source if error.item in found else section
            raise SettingsError(f"{error.item} {error.message}", item=source) from None

    def _where(self, section: str, key: str | None = None) -> str:
        """The file with the line of a section or key, as far as it can be told."""
        of_section = _BARE_KEY.format(re.escape(section))
        of_key = _BARE_KEY.format(re.escape(key or ""))
        heading = re.compile(rf"\s*\[\[?\s*{of_section}\s*\]")
        whole = re.compile(rf"\s*{of_section}\s*[.=]")  # `server = {{...}}` or `server.socket = ...`
        inside = re.compile(rf"\s*{of_key}\s*[.=]")
        dotted = re.compile(rf"\s*(?:\[\[?\s*)?{of_section}\s*\.\s*{of_key}\s*[.=\]]")
        current, at = None, None
        for number, line in enumerate(self._text.splitlines(), 1):
            is_heading = line.lstrip().startswith("[")
            if is_heading:
                current = section if heading.match(line) else line
            if key is not None and ((current == section and inside.match(line)) or dotted.match(line)):
                if is_heading or current in (section, None):
                    return f"{self._file}:{number}"
            elif at is None and (current == section if is_heading else current is None and whole.match(line)):
                at = number
        return str(self._file) if at is None else f"{self._file}:{at}"

    def _unknown(self, what: str, name: str, known: Mapping[str, Any] | tuple[str, ...], where: str) -> None:
        near = difflib.get_close_matches(name, list(known), 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise SettingsError(f"unknown {what}; {hint}", item=where)


def _suited(key: str, kind: str, found: _Found) -> Any:
    """A value as its setting takes it: `power_mode = 2` names a mode, sizes may have a unit, paths are whole.

    In a file what stands in quotes is text, and neither a number nor true or false; in a variable nothing has to stand
    in quotes.
    """
    value = found.value
    if key.endswith("_bytes") and not (isinstance(value, int) and not isinstance(value, bool)):
        return _size(key, value, found.source)
    taken, called = _kind(kind)
    if called is None:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and taken == (str,):
        value = str(value)
    strict = found.of_file or bool not in taken  # ... ON, off, 1 and the like are what people give variables
    if strict and (not isinstance(value, taken) or (isinstance(value, bool) and bool not in taken)):
        raise SettingsError(f"{key}: should be {_CALLED.get(key, called)}", item=found.source)
    if "Path" in kind.split(" | ") and not os.path.isabs(value):  # noqa: PTH117 - Path would make "." of nothing
        raise SettingsError(f"{key} must be an absolute path, such as /srv/{key}", item=found.source)
    return value


def _kind(kind: str) -> tuple[tuple[type, ...], str | None]:
    """What TOML may have for a type of ours, and what that is called; no name where the library knows better."""
    return next((_KINDS[one] for one in kind.split(" | ") if one in _KINDS), ((), None))


def _size(key: str, text: Any, source: str) -> int:
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise SettingsError(f"{key} must be a number of bytes, or text such as 64 MiB", item=source)
    return round(float(match[1]) * _UNITS[(match[2] or "").lower()])


def _plainly(message: str) -> str:
    """The library's sentence as the end of one of ours."""
    return message.removeprefix("Input ").removeprefix("Value error, ")

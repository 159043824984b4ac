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

from orin_rerank.config.file import VARIABLE_PREFIX, value_of
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
        try:
            self._text = file.read_text(encoding="utf-8")
            content = tomllib.loads(self._text)
        except OSError as error:
            raise SettingsError(f"cannot be read: {error.strerror}", item=str(file)) from None
        except UnicodeDecodeError:
            raise SettingsError("is not UTF-8", item=str(file)) from None
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"is no TOML: {error}", item=str(file)) from None
        for section, values in content.items():
            if section not in SECTIONS:
                self._unknown(f"section [{section}]", section, SECTIONS, self._where(section))
            if not isinstance(values, dict):
                raise SettingsError(f"{section} is a section: write [{section}]", item=self._where(section))
            for key, value in values.items():
                if key not in keys_of(section):
                    self._unknown(f"key {key} in [{section}]", key, keys_of(section), self._where(section, key))
                found[section][key] = _Found(value, self._where(section, key))

    def _read_environment(self, found: dict[str, dict[str, _Found]]) -> None:
        for name, text in self._environment.items():
            if not name.startswith(VARIABLE_PREFIX):
                continue
            section, _, key = name.removeprefix(VARIABLE_PREFIX).lower().partition("__")
            if section not in SECTIONS:
                self._unknown(f"section {section}", section, SECTIONS, name)
            if key not in keys_of(section):
                self._unknown(f"key {key} in {section}", key, keys_of(section), name)
            found[section][key] = _Found(value_of(text), name)

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
            raise SettingsError(f"{key}: {_plainly(first['msg'])}", item=found[key].source) from None
        except SettingsError as error:
            source = found[error.item].source if error.item in found else section
            raise SettingsError(f"{error.item} {error.message}", item=source) from None

    def _where(self, section: str, key: str | None = None) -> str:
        """The file with the line of a section or key, as far as it can be told."""
        heading = re.compile(rf"\s*\[\s*{_BARE_KEY.format(re.escape(section))}\s*\]")
        inside = re.compile(rf"\s*{_BARE_KEY.format(re.escape(key or section))}\s*=")
        dotted = re.compile(rf"\s*{re.escape(section)}\s*\.\s*{re.escape(key or '')}\s*=")
        current, at = None, None
        for number, line in enumerate(self._text.splitlines(), 1):
            if line.lstrip().startswith("["):
                current = section if heading.match(line) else line
                if current == section:
                    at = number
            elif key is None and current is None and inside.match(line):
                at = number
            elif key is not None and ((current == section and inside.match(line)) or dotted.match(line)):
                return f"{self._file}:{number}"
        return str(self._file) if at is None else f"{self._file}:{at}"

    def _unknown(self, what: str, name: str, known: Mapping[str, Any] | tuple[str, ...], where: str) -> None:
        near = difflib.get_close_matches(name, list(known), 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise SettingsError(f"unknown {what}; {hint}", item=where)


def _suited(key: str, kind: str, found: _Found) -> Any:
    """A value as its setting takes it: `power_mode = 2` names a mode, while a number is neither true nor false."""
    kinds = kind.split(" | ")
    if isinstance(found.value, bool):
        if {"int", "float"} & set(kinds):
            raise SettingsError(f"{key}: should be a number, not true or false", item=found.source)
    elif isinstance(found.value, int) and {"str", "Path"} & set(kinds):
        return str(found.value)
    return _size(key, found)


def _size(key: str, found: _Found) -> Any:
    """Sizes may have a unit: `64 MiB`."""
    if not (key.endswith("_bytes") and isinstance(found.value, str)):
        return found.value
    match = _SIZE.fullmatch(found.value)
    if match is None:
        raise SettingsError(f"{key} must be a number of bytes, or text such as 64 MiB", item=found.source)
    return round(float(match[1]) * _UNITS[(match[2] or "").lower()])


def _plainly(message: str) -> str:
    """The library's sentence as the end of one of ours."""
    return message.removeprefix("Input ").removeprefix("Value error, ")

"""Where the settings are, and a look at one of them for clients, which must be quick and check nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orin_rerank.plain_files import read_plain_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CONFIG_FILE", "CONFIG_VARIABLE", "VARIABLE_PREFIX", "config_file", "look_up", "read_file", "value_of"]

CONFIG_FILE: Final = Path("/etc/orin-rerank/config.toml")
"""The system's settings file."""

CONFIG_VARIABLE: Final = "ORIN_RERANK_CONFIG"
"""Names another file."""

VARIABLE_PREFIX: Final = "ORIN_RERANK__"
"""Begins a variable that stands for a setting: prefix, section, two underscores, key; in capitals."""

_LARGEST_BYTES: Final = 1 << 20


def config_file(named: Path | None = None) -> Path | None:
    """The file to read: the one that is named, else ORIN_RERANK_CONFIG's, else the system's if it is there."""
    if named is not None:
        return named
    variable = os.environ.get(CONFIG_VARIABLE)
    if variable:
        return Path(variable)
    try:
        CONFIG_FILE.stat()
    except PermissionError:
        return CONFIG_FILE  # it may be there; whoever has to read it is told that he may not
    except OSError:
        return None
    return CONFIG_FILE


def read_file(file: Path) -> bytes:
    """A settings file's bytes; a byte order mark, which some editors write, is not among them.

    Raises:
        OSError: If it cannot be read, is no plain file, of which one never knows when it ends, or is far too large.
    """
    data = read_plain_file(file, _LARGEST_BYTES + 1)
    if data is None:
        raise OSError(0, "it is no plain file")
    if len(data) > _LARGEST_BYTES:
        raise OSError(0, "it has more than 1 MiB, which no settings have")
    return data.removeprefix(b"\xef\xbb\xbf")


def look_up(section: str, key: str, file: Path | None, environment: Mapping[str, str] = os.environ) -> Any:
    """One setting as it stands in the environment or the file; None if it does not, or the file cannot be read.

    Args:
        section: The setting's section.
        key: Its name.
        file: The settings file; None takes the environment alone.
        environment: Where overriding variables are looked for.
    """
    variable = environment.get(f"{VARIABLE_PREFIX}{section}__{key}".upper())
    if variable is not None:
        return value_of(variable)
    try:
        content = {} if file is None else tomllib.loads(read_file(file).decode())
        return content.get(section, {}).get(key)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError, RecursionError):
        return None


def value_of(text: str) -> Any:
    """A variable's text as TOML would read it; text that is no value is a string without its quotes."""
    try:
        content = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return content["value"] if content.keys() == {"value"} else text  # of several lines each would be a key

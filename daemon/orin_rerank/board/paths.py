"""Where a board's files are: below one root path."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ROOT_VARIABLE", "BoardPaths"]

ROOT_VARIABLE: Final = "ORIN_RERANK_BOARD_ROOT"
"""Environment variable that names another root, for tests and for looking at a copy of somebody's board."""

_PROGRAM_FOLDERS: Final = ("usr/sbin", "usr/bin", "sbin", "bin")


@dataclass(frozen=True, slots=True)
class BoardPaths:
    """A board's files.

    Kernel files vanish, refuse reading while their unit is off, or hold what nobody expects; so readers get None then,
    and never an error.

    Attributes:
        root: What stands for `/`.
    """

    root: Path = Path("/")

    @classmethod
    def from_environment(cls) -> BoardPaths:
        """The machine itself, unless `ORIN_RERANK_BOARD_ROOT` names a tree."""
        return cls(Path(os.environ.get(ROOT_VARIABLE) or "/"))

    def at(self, path: str) -> Path:
        """Where an absolute path of the board is, such as `/etc/nvpmodel.conf`."""
        return self.root / path.lstrip("/")

    def text(self, path: str | Path) -> str | None:
        """Contents of a small file without surrounding space and NULs; None if it cannot be read.

        Args:
            path: An absolute path of the board, or a Path that `at` or `glob` gave.
        """
        file = self.at(path) if isinstance(path, str) else path
        try:
            data = file.read_bytes()
        except OSError:  # EAGAIN from the sensor of a unit that is off, ENODEV, EACCES, no such file
            return None
        return data.decode("utf-8", errors="replace").strip(" \t\r\n\0")

    def number(self, path: str | Path) -> int | None:
        """A file's contents as a whole number; None if it cannot be read or holds none."""
        text = self.text(path)
        try:
            return None if text is None else int(text, 0)
        except ValueError:
            return None

    def glob(self, pattern: str) -> Iterator[Path]:
        """Files that match an absolute pattern, those with numbers in their names in ascending order."""
        yield from sorted(self.root.glob(pattern.lstrip("/")), key=_natural)

    def program(self, name: str) -> Path | None:
        """An executable of the board, None if it has none of that name."""
        for folder in _PROGRAM_FOLDERS:
            file = self.root / folder / name
            if file.is_file() and os.access(file, os.X_OK):
                return file
        return None


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Orders `zone9` before `zone10`."""
    parts: list[tuple[int, int, str]] = []
    for part in path.parts:
        digits = part[len(part.rstrip("0123456789")) :]
        parts.append((0, int(digits or 0), part[: len(part) - len(digits)]))
    return [(kind, 0, name) if not number else (kind, number, name) for kind, number, name in parts]

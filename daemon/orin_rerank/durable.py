"""Writes that survive a power cut: what they point at is on disk first, and they appear whole or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["part_of", "replace_file", "replace_link", "sync_folder", "sync_tree"]


def sync_folder(folder: Path) -> None:
    """Sees to it that the names in a folder are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Sees to it that everything below a folder is on disk."""
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        elif path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(folder)


def part_of(path: Path) -> Path:
    """Where a file is written before it appears under its name; whoever kills a writer removes it."""
    return path.with_name(f".{path.name}.part")


def replace_file(path: Path, contents: bytes | memoryview) -> None:
    """Writes a file, or replaces it, at once: a reader finds the old contents or the new ones."""
    part = part_of(path)
    with part.open("wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def replace_link(link: Path, target: str) -> None:
    """Points a symbolic link elsewhere, at once: a reader finds the old target or the new one."""
    part = link.with_name(f".{link.name}.part")
    part.unlink(missing_ok=True)
    part.symlink_to(target)
    part.replace(link)
    sync_folder(link.parent)

"""Whether what is written to a folder is known to be there still after a reboot."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths

__all__ = ["outlives_reboot"]

MOUNTS: Final = "/proc/self/mountinfo"

_OVERLAY: Final = "overlay"
_IN_MEMORY: Final = ("tmpfs", "ramfs", "devtmpfs", "rootfs", "aufs")
_DISK: Final = re.compile(r"/dev/(?!z?ram\d)")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class _Mount:
    point: str
    kind: str
    source: str
    options: str


def outlives_reboot(paths: BoardPaths, folder: Path) -> bool:
    """Whether a folder is on a disk: not in memory, nor on an overlay that is. What is not known is none.

    Args:
        paths: The machine.
        folder: The folder.
    """
    return _lasts(_mounts(paths.text(MOUNTS) or ""), os.path.realpath(folder), set())


def _lasts(mounts: list[_Mount], path: str, seen: set[str]) -> bool:
    under = [mount for mount in mounts if mount.point == "/" or f"{path}/".startswith(f"{mount.point}/")]
    if not under:
        return False
    mount = max(reversed(under), key=lambda mount: len(mount.point))  # the later one of two at a place covers the other
    if mount.kind != _OVERLAY:
        return mount.kind not in _IN_MEMORY and _DISK.match(mount.source) is not None
    # What is changed is in its upper folder; one below the overlay itself is of a mount that is not to be seen.
    upper = re.search(r"(?:^|,)upperdir=([^,]+)", mount.options)
    return upper is not None and mount.point not in seen and _lasts(mounts, upper[1], {*seen, mount.point})


def _mounts(text: str) -> list[_Mount]:
    """From lines such as `36 35 98:0 / /var rw shared:1 - ext4 /dev/nvme0n1p1 rw`."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        first, last = before.split(), after.split()
        if len(first) >= 5 and len(last) >= 3:
            found.append(_Mount(_plain(first[4]), last[0], _plain(last[1]), _plain(last[2])))
    return found


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)

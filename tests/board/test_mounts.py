"""Whether a folder is still there after a reboot."""

from __future__ import annotations

from pathlib import Path

import pytest

from orin_rerank.board.mounts import outlives_reboot
from orin_rerank.board.paths import BoardPaths

DISK = "25 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw"
OVERLAY = "25 1 0:23 / / rw - overlay overlayroot rw,lowerdir=/ro,upperdir=/media/root-rw/overlay,workdir=/media/w"
RUN = "30 25 0:26 / /run rw - tmpfs tmpfs rw,size=800000k"
UPPER_IN_MEMORY = "31 25 0:27 / /media/root-rw rw - tmpfs tmpfs rw"
UPPER_ON_DISK = "31 25 259:2 / /media/root-rw rw - ext4 /dev/nvme0n1p2 rw"


@pytest.mark.parametrize(
    ("lines", "folder", "expected"),
    [
        ([DISK, RUN], "/var/lib/x", True),
        ([DISK, RUN], "/run/x", False),
        ([DISK, RUN], "/runner", True),
        ([DISK, "32 25 0:30 / /var rw - tmpfs tmpfs rw"], "/var/lib/x", False),
        ([DISK, "32 25 0:30 / /var/li rw - tmpfs tmpfs rw"], "/var/lib/x", True),
        ([DISK, "32 25 0:30 / /var rw - tmpfs a rw", "33 25 8:1 / /var rw - ext4 /dev/sda1 rw"], "/var/lib/x", True),
        ([OVERLAY, UPPER_IN_MEMORY], "/var/lib/x", False),
        ([OVERLAY, UPPER_ON_DISK], "/var/lib/x", True),
        ([OVERLAY], "/var/lib/x", True),  # a container's, whose upper folder is not to be seen
        (["25 1 0:23 / / rw - overlay o rw,lowerdir=/ro,upperdir=/run/up", RUN], "/var/lib/x", False),
        ([DISK, r"34 25 0:31 / /a\040b rw - ramfs r rw"], "/a b/x", False),
        (["nonsense", "1 2 3 - "], "/var/lib/x", True),
        ([], "/var/lib/x", True),
    ],
)
def test_where_a_folder_is(tmp_path: Path, lines: list[str], folder: str, *, expected: bool) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("\n".join(lines))
    assert outlives_reboot(BoardPaths(tmp_path), Path(folder)) is expected


def test_this_machine_says_something() -> None:
    assert not outlives_reboot(BoardPaths(), Path("/proc/../dev/shm")) or not Path("/dev/shm").is_mount()

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
        ([OVERLAY], "/var/lib/x", False),  # a container's, or an initramfs's: the upper folder is not to be seen
        (["25 1 0:23 / / rw - overlay o rw,lowerdir=/ro,upperdir=/run/up", RUN], "/var/lib/x", False),
        (["25 1 0:23 / / rw - overlay o rw,lowerdir=/ro"], "/var/lib/x", False),
        ([DISK, r"34 25 8:2 / /a\040b rw - ext4 /dev/sdb1 rw"], "/a b/x", True),
        ([r"34 25 0:31 / /a\040b rw - ramfs r rw", DISK], "/a b/x", False),
        ([DISK, "35 25 251:1 / /var rw - ext4 /dev/zram1 rw"], "/var/lib/x", False),
        ([DISK, "35 25 1:0 / /var rw - ext2 /dev/ram0 rw"], "/var/lib/x", False),
        (["36 1 0:30 / / rw - rootfs rootfs rw"], "/var/lib/x", False),
        (["36 1 0:30 / / rw - nfs4 10.0.0.1:/root rw"], "/var/lib/x", False),
        (["36 1 254:0 / / rw - btrfs /dev/mapper/root rw"], "/var/lib/x", True),
        (["nonsense", "1 2 3 - "], "/var/lib/x", False),
        ([], "/var/lib/x", False),
    ],
)
def test_where_a_folder_is(tmp_path: Path, lines: list[str], folder: str, *, expected: bool) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("\n".join(lines))
    assert outlives_reboot(BoardPaths(tmp_path), Path(folder)) is expected

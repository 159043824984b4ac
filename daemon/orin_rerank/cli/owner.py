"""As root, work as the user whose service has to be able to use what is made.

For commands that write into the state folder. `export` is none: a bundle is only read by the service, and may lie where
root alone writes.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
from typing import TYPE_CHECKING

from orin_rerank.plain_files import nearest_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["become_owner"]


def become_owner(folder: Path, also: Path | None = None) -> str | None:
    """Becomes the owner of a folder, for good, where this is root and the owner is not; says so on standard error.

    What root made there could be read by the service, and not replaced or removed by it. Who names files that only root
    may read is told that they cannot be read.

    Args:
        folder: The folder; where it is not there yet, the one that it will be made in counts.
        also: Another folder that the owner needs, and could not make where root alone may: made for him if missing.

    Returns:
        The user's name; None where nothing was to be changed.
    """
    if os.geteuid() != 0:
        return None
    there = nearest_folder(folder)
    try:
        owner = there.stat().st_uid
        user = pwd.getpwuid(owner)
    except (OSError, KeyError):
        return None
    if owner == 0:
        return None
    if also is not None and not also.exists():
        with contextlib.suppress(OSError):  # whoever needs it says what is the matter
            also.parent.mkdir(parents=True, exist_ok=True)
            also.mkdir(mode=0o750)
            os.chown(also, owner, user.pw_gid)
    os.initgroups(user.pw_name, user.pw_gid)  # those that may open the GPU's nodes among them
    os.setgid(user.pw_gid)
    os.setuid(owner)
    os.environ["HOME"] = user.pw_dir  # compilers of NVIDIA's write caches there
    sys.stderr.write(f"working as {user.pw_name}, who owns {there}\n")
    return user.pw_name

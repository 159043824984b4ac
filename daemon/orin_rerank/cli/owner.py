"""As root, work as the user whose service has to be able to use what is made."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["become_owner"]


def become_owner(folder: Path) -> str | None:
    """Becomes the owner of a folder, for good, where this is root and the owner is not.

    What root made there could be read by the service, and not replaced or removed by it.

    Returns:
        The user's name; None where nothing was to be changed.
    """
    if os.geteuid() != 0:
        return None
    try:
        owner = folder.stat().st_uid
        user = pwd.getpwuid(owner)
    except (FileNotFoundError, KeyError):
        return None
    if owner == 0:
        return None
    os.initgroups(user.pw_name, user.pw_gid)  # those that may open the GPU's nodes among them
    os.setgid(user.pw_gid)
    os.setuid(owner)
    os.environ["HOME"] = user.pw_dir  # compilers of NVIDIA's write caches there
    return user.pw_name

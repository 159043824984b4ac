"""Users and groups, and who may open what."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SERVICE_USER", "User", "group_name"]

SERVICE_USER: Final = "orin-rerank"
"""As whom the daemon runs where the package is installed."""


@dataclass(frozen=True, slots=True)
class User:
    """A user.

    Attributes:
        name: The name.
        uid: The number.
        gids: Numbers of all groups.
    """

    name: str
    uid: int
    gids: frozenset[int]

    @classmethod
    def named(cls, name: str) -> User | None:
        """A user by name, with the groups that the system's files give; None if there is none."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            return None
        return cls(name, entry.pw_uid, frozenset(os.getgrouplist(name, entry.pw_gid)))

    @classmethod
    def current(cls) -> User:
        """The one that runs this process, with the groups that it has: those given since count after a new login."""
        uid = os.geteuid()
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = str(uid)
        return cls(name, uid, frozenset((os.getegid(), *os.getgroups())))

    def may(self, bits: int, status: os.stat_result) -> bool:
        """Whether permission bits let this user do something; access lists are not looked at.

        Args:
            bits: What, as one octal digit: 6 is to read and write.
            status: Of the file.
        """
        if self.uid == 0:
            return True
        if status.st_uid == self.uid:
            shift = 6
        elif status.st_gid in self.gids:
            shift = 3
        else:
            shift = 0
        return (stat.S_IMODE(status.st_mode) >> shift) & bits == bits

    def kept_from(self, path: Path, bits: int) -> Path | None:
        """What keeps this user from something: a folder on the way that may not be passed, or the thing itself.

        Args:
            path: What, absolute.
            bits: As for `may`.

        Returns:
            The first in the way; None where there is nothing, or the caller may not look.

        Raises:
            FileNotFoundError: If it, or a folder on the way, is not there.
        """
        path = path.resolve()
        try:
            for folder in reversed(path.parents):
                if not self.may(1, folder.stat()):
                    return folder
            return None if self.may(bits, path.stat()) else path
        except PermissionError:
            return None


def group_name(gid: int) -> str:
    """A group's name, or its number where it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)

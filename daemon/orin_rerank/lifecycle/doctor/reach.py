"""What the daemon can get at: by its user's permissions, and by what its unit lets it see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.store import default_state_folder
from orin_rerank.lifecycle.doctor.finding import fail

if TYPE_CHECKING:
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.doctor.context import Context
    from orin_rerank.lifecycle.doctor.finding import Finding

__all__ = ["MAY_READ", "MAY_WRITE", "installed_unit", "out_of_reach", "shut_by_unit"]

MAY_READ: Final = 5
MAY_WRITE: Final = 7
"""Of a folder, as one octal digit."""

_UNIT: Final = "orin-rerank.service"
_UNIT_FOLDERS: Final = ("/etc/systemd/system", "/lib/systemd/system")
_HIDDEN: Final = tuple(map(Path, ("/home", "/root", "/run/user")))
"""By the unit's ProtectHome."""


def installed_unit(paths: BoardPaths) -> bool:
    """Whether the daemon is a service of this machine."""
    return any(paths.at(f"{folder}/{_UNIT}").exists() for folder in _UNIT_FOLDERS)


def out_of_reach(paths: BoardPaths, context: Context, folder: Path, bits: int) -> Finding | None:
    """Why the daemon cannot get at a folder; None if it can, or if the caller may not look.

    Args:
        paths: The board.
        context: What is known.
        folder: Absolute.
        bits: What it does there, MAY_READ or MAY_WRITE.

    Raises:
        FileNotFoundError: If the folder is not there.
    """
    hidden = next((home for home in _HIDDEN if folder.resolve().is_relative_to(home)), None)
    if hidden is not None and installed_unit(paths):
        return fail(f"{folder}: the service sees nothing below {hidden}", "put it somewhere else, such as below /srv")
    user = context.daemon_user
    barrier = user.kept_from(folder, bits)
    if barrier is None:
        return None
    verb = "write to" if bits == MAY_WRITE and barrier == folder.resolve() else "read"
    if verb == "write to":
        return fail(f"{user.name} may not write to {folder}", command=f"sudo chown -R {user.name}: {folder}")
    which = folder if barrier == folder.resolve() else f"{folder}: {barrier} is shut"
    return fail(f"{user.name} may not read {which}", "let others read it", f"sudo chmod o+rx {barrier}")


def shut_by_unit(paths: BoardPaths, folder: Path) -> Finding | None:
    """Why the unit does not let the daemon write to a folder; None if it does, or there is none."""
    own = default_state_folder({}, user=0)
    if not installed_unit(paths) or folder.resolve().is_relative_to(own):
        return None
    for file in paths.glob(f"{_UNIT_FOLDERS[0]}/{_UNIT}.d/*.conf"):
        for line in (paths.text(file) or "").splitlines():
            key, _, value = line.strip().partition("=")
            if key.strip() == "ReadWritePaths" and any(
                folder.is_relative_to(one.lstrip("-+")) for one in value.split() if one.lstrip("-+")
            ):
                return None
    return fail(
        f"{folder}: systemd lets the service write below {own} alone",
        f"add [Service] ReadWritePaths={folder}, and restart it",
        "sudo systemctl edit orin-rerank",
    )

"""What a board was set to before the first change, kept until it is given back when the package goes.

`mode.stored` has a power mode on each line, such as `2 MODE_30W`: the one that was found, and below it all that were to
be set since. `clocks.stored` is what `jetson_clocks --store` writes. Each is written before the change that it is for.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.board.jetson_clocks import PROGRAM, store_clocks
from orin_rerank.durable import part_of, replace_file, sync_folder
from orin_rerank.errors import BoardBusyError, BoardError
from orin_rerank.plain_files import holding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orin_rerank.board.nvpmodel import CurrentMode
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.power_modes import PowerMode, PowerModes

__all__ = ["LOCK_WAIT_S", "FoundSettings", "NotedMode", "exclusively"]

LOCK_WAIT_S: Final = 10.0
"""How long one `orin-rerank board` waits for another, which takes a few seconds as a rule."""


@dataclass(frozen=True, slots=True)
class NotedMode:
    """A power mode as it is noted. Its name says more than its number, which may be another mode's after an upgrade.

    Attributes:
        id: Its number.
        name: Its name; None if it was not known.
    """

    id: int
    name: str | None

    def is_same(self, current: CurrentMode) -> bool:
        """Whether a board is in it."""
        return self.id == current.id if self.name is None or current.name is None else self.name == current.name

    def among(self, modes: PowerModes) -> PowerMode:
        """The mode, as the board has it now.

        Raises:
            BoardError: If it has none of that name.
        """
        return modes.find(str(self.id) if self.name is None else self.name)

    def __str__(self) -> str:
        return str(self.id) if self.name is None else f"{self.id} {self.name}"

    @classmethod
    def parse(cls, line: str) -> NotedMode:
        """Reads a line.

        Raises:
            ValueError: If it is none.
        """
        number, _, name = line.strip().partition(" ")
        return cls(int(number), name.strip() or None)


class FoundSettings:
    """What was found, in the state folder.

    Args:
        state: The folder.
    """

    def __init__(self, state: Path) -> None:
        self.mode_file = state / "mode.stored"
        self.clocks_file = state / "clocks.stored"

    def modes(self) -> list[NotedMode]:
        """The mode that was found, and those that were to be set since; nothing if none was to be.

        Raises:
            BoardError: If what was noted is not understood.
        """
        try:
            lines = self.mode_file.read_bytes().decode().splitlines()
            return [NotedMode.parse(line) for line in lines if line.strip()]
        except FileNotFoundError:
            return []
        except (OSError, ValueError):
            hint = "remove it, and the mode that the board is in counts as the one that was found"
            raise BoardError(f"is damaged: {hint}", item=str(self.mode_file)) from None

    def keep_mode(self, current: CurrentMode | None, wanted: PowerMode) -> None:
        """Notes the mode before another is set; the one that was found at first stays the first.

        Raises:
            BoardError: If it is not known, or cannot be noted.
        """
        noted, ours = self.modes(), NotedMode(wanted.id, wanted.name)
        if not noted:
            if current is None or current.id is None:
                raise BoardError("it is not known", item=f"power mode {wanted.name}")
            noted = [NotedMode(current.id, current.name)]
        if ours in noted[1:]:
            return
        try:
            replace_file(self.mode_file, "".join(f"{mode}\n" for mode in [*noted, ours]).encode())
        except OSError as error:
            raise BoardError(f"cannot be written: {error.strerror}", item=str(self.mode_file)) from None

    def keep_clocks(self, paths: BoardPaths, timeout_s: float) -> None:
        """Notes the clocks before they are locked, unless they are noted.

        Raises:
            BoardBusyError: If the board does not tell them now.
            BoardError: If they cannot be noted.
        """
        if self.clocks_file.exists():
            return
        part = part_of(self.clocks_file)  # it writes in place, so a power cut would leave half
        try:
            part.unlink(missing_ok=True)
            store_clocks(paths, part, timeout_s)
            with part.open("rb") as stored:
                if not stored.read(1):
                    raise BoardBusyError("stored no clocks", item=PROGRAM)
                os.fsync(stored.fileno())
            part.replace(self.clocks_file)
            sync_folder(part.parent)
        except OSError as error:
            raise BoardError(f"cannot be written: {error.strerror}", item=str(self.clocks_file)) from None


@contextlib.contextmanager
def exclusively(state: Path, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Keeps others that change the board away meanwhile.

    Args:
        state: The state folder, which is made if it is missing.
        wait_s: How long to wait for one that is at work.

    Raises:
        BoardBusyError: If that one does not come to an end.
        OSError: If the folder cannot be made.
    """
    state.mkdir(parents=True, exist_ok=True)
    with holding(state, wait_s) as held:
        if not held:
            raise BoardBusyError("another `orin-rerank board` is at work", item=str(state))
        yield

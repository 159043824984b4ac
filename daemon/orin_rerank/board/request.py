"""What the daemon, which has no privileges, may ask of the root service: one word in one file.

A path unit watches the file. Whoever may write it is not trusted: it is opened without following links, must be a plain
file, and only the first bytes are read and compared with the words that are known. Whatever lies there is removed, or
the path unit would start the service again and again. Root that asks, too, writes into that folder, and follows no link
there either.
"""

from __future__ import annotations

import contextlib
import enum
from pathlib import Path
from typing import Final

from orin_rerank.errors import BoardError
from orin_rerank.plain_files import read_plain_file

__all__ = ["OUTCOME", "REQUEST", "BoardRequest", "read_request", "write_request"]

REQUEST: Final = Path("/run/orin-rerank/board-request")
"""Where the daemon asks."""
OUTCOME: Final = Path("/run/orin-rerank-board/outcome.json")
"""Where the root service answers; everyone may read it."""

_LONGEST: Final = 32


class BoardRequest(enum.Enum):
    """What may be asked for."""

    TUNE = "tune"
    """Power mode and clocks as they shall be, which something has undone."""


def write_request(request: BoardRequest, file: Path = REQUEST) -> None:
    """Asks.

    Raises:
        BoardError: If the file cannot be written.
    """
    part = file.with_name(f".{file.name}.part")
    try:
        part.unlink(missing_ok=True)
        with part.open("x", encoding="ascii") as out:  # a link that was put there is not followed, but refused
            out.write(request.value)
        part.replace(file)  # the path unit sees it whole; a crash loses nothing that is not asked for again
    except OSError as error:
        raise BoardError(f"cannot be written: {error.strerror}", item=str(file)) from None


def read_request(file: Path = REQUEST) -> BoardRequest:
    """Reads what is asked for, as root, and removes whatever lies there, a folder only if it is empty.

    Raises:
        BoardError: If there is no request, or it is none that is known.
    """
    try:
        data = read_plain_file(file, _LONGEST + 1, follow=False)
    except IsADirectoryError:
        data = None
    except OSError as error:
        raise BoardError(f"cannot be read: {error.strerror}", item=str(file)) from None
    finally:
        _remove(file)
    for request in BoardRequest:
        if data == request.value.encode():
            return request
    raise BoardError("asks for nothing that is known", item=str(file))


def _remove(file: Path) -> None:
    """Makes the name free, without following it."""
    try:
        file.unlink(missing_ok=True)
    except OSError:
        with contextlib.suppress(OSError):
            file.rmdir()

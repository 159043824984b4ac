"""The root of all errors, what sorts of failure there are, and bugs."""

from __future__ import annotations

import enum
from typing import ClassVar

__all__ = [
    "ErrorKind",
    "InternalError",
    "OrinRerankError",
]


class ErrorKind(enum.Enum):
    """What sort of failure an error is; decides gRPC status and exit code."""

    INVALID = "invalid"
    NOT_FOUND = "not_found"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    DATA = "data"
    INTERNAL = "internal"


class OrinRerankError(Exception):
    """Root of all errors that the project raises on purpose.

    Args:
        message: One sentence for a person; never holds the contents of a request.
        item: The offending item, such as `documents[3]`, a file name or a tensor name.
    """

    kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL
    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, item: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.item = item

    def __str__(self) -> str:
        return f"{self.item}: {self.message}" if self.item else self.message

    def within(self, outer: str) -> OrinRerankError:
        """Returns this error with its item placed inside `outer`: `content[0]` in `documents[3]`."""
        self.item = f"{outer}.{self.item}" if self.item else outer
        return self


class InternalError(OrinRerankError):
    """A bug of ours; the message says what was violated."""

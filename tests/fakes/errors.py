"""One error of every class of the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orin_rerank.errors import MemoryShortError, OrinRerankError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIGURES: dict[type[OrinRerankError], dict[str, Any]] = {
    OverloadedError: {"retry_after_s": 1.0},
    MemoryShortError: {"needed_bytes": 2, "available_bytes": 1},
}
"""What some classes ask for beside a message."""


def error_classes(root: type[OrinRerankError] = OrinRerankError) -> Iterator[type[OrinRerankError]]:
    """The root and everything below it."""
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)


def an_error(of: type[OrinRerankError], message: str = "m", item: str | None = None) -> OrinRerankError:
    figures = next((figures for root, figures in _FIGURES.items() if issubclass(of, root)), {})
    return of(message, item=item, **figures)

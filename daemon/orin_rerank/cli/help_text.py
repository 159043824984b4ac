"""Turns a command's docstring into its `--help`: paragraphs that wrap, examples that do not."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from rich.markup import escape

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["help_of"]


def help_of(command: Callable[..., object]) -> str:
    """The docstring with each paragraph on one line, indented ones as they are, and brackets taken literally."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return escape("\n\n".join(text if text.startswith(" ") else text.replace("\n", " ") for text in paragraphs))

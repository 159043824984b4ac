"""Which TensorRT bindings are installed, found out without importing them."""

from __future__ import annotations

import importlib.util
from typing import Final

__all__ = ["MODULES", "installed_bindings"]

MODULES: Final = ("tensorrt", "tensorrt_rtx")
"""In the order in which they are preferred."""


def installed_bindings() -> str | None:
    """Name of the module to import; None if there is none.

    A package of type stubs alone leaves a folder of that name, which Python would import as an empty namespace.
    """
    for name in MODULES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            return name
    return None

"""Where operators come from that ONNX itself does not have, or not in a form that every runtime has."""

from __future__ import annotations

from typing import Final

__all__ = ["RUNTIME_DOMAIN"]

RUNTIME_DOMAIN: Final = "com.microsoft"
"""ONNX Runtime's own operators; graphs that use them run nowhere else."""

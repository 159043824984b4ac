"""What is the same of every engine on a GPU."""

from __future__ import annotations

from typing import Final

__all__ = ["CUDA_SLOTS"]

CUDA_SLOTS: Final = 2
"""Packs in flight on a GPU: one is computed while the next is prepared and the last is answered.

More do not help: the measurements are in docs/device-figures.md.
"""

"""How many packs a GPU has in flight."""

from __future__ import annotations

from typing import Final

__all__ = ["CUDA_SLOTS"]

CUDA_SLOTS: Final = 2
"""Packs in flight on a GPU: one is computed while another is laid out or read. More are slower: docs/device-figures.md.
"""

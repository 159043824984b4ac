"""What a person may set about the engine."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orin_rerank.errors import SettingsError

if TYPE_CHECKING:
    from orin_rerank.graph.builder import Dialect

__all__ = ["DeviceChoice", "EngineSettings", "PrecisionChoice"]


class DeviceChoice(enum.Enum):
    """What a person may ask a model to be computed on."""

    AUTO = "auto"
    """The GPU where it can be used when the engine is made, else the processor. One that fails later ends the process.
    """
    CPU = "cpu"
    CUDA = "cuda"


class PrecisionChoice(enum.Enum):
    """What a person may ask a model to be computed in."""

    AUTO = "auto"
    """INT8 where an engine is installed that is shown to rank as full precision does, else full precision."""
    FULL = "full"
    INT8 = "int8"
    """INT8 or nothing."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of an engine, checked when made.

    Attributes:
        precision: What to compute in.
        device: What to compute on.
        threads: Processor cores to compute on, with a pack in flight on each; None means those that this process may
            use. A GPU has two packs in flight, or one where memory is short, whatever this says.
        token_budget: Tokens in a pack; None means to measure at start.
        dialect: Which of a bundle's graphs to run; None means what measures faster as a rule on this runtime.
        feature_cache_bytes: Memory for the features of images seen lately; None means what the memory plan gives it.
        prefix_cache_bytes: Memory for the keys and values of prefixes seen lately; None likewise.
        picture_bytes: Memory for pictures that are decoded and wait for the engine, of all requests together; None
            likewise. Where it is less than a piece of a request takes, one piece is decoded at a time.
        pool_timeout_s: How long a pack waits for a free buffer.
        max_tokens: Longest prefix + document, where that shall be less than the model takes.
        memory_bytes: Memory that serving may take in all, of the GPU where that has its own; None means what there
            is, less what the system needs.

    Raises:
        SettingsError: If a value is out of its range; the item names it.
    """

    precision: PrecisionChoice = PrecisionChoice.AUTO
    device: DeviceChoice = DeviceChoice.AUTO
    threads: int | None = None
    token_budget: int | None = None
    dialect: Dialect | None = None
    feature_cache_bytes: int | None = None
    prefix_cache_bytes: int | None = None
    picture_bytes: int | None = None
    pool_timeout_s: float = 30.0
    max_tokens: int | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("threads", 1, 1024),
            ("token_budget", 16, 65536),
            ("max_tokens", 256, 65536),
            ("memory_bytes", 1 << 28, 1 << 50),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise SettingsError(f"must be from {low} to {high}, not {value}", item=name)
        for name in ("feature_cache_bytes", "prefix_cache_bytes", "picture_bytes"):
            if (getattr(self, name) or 0) < 0:
                raise SettingsError("must not be negative", item=name)
        if self.pool_timeout_s <= 0:
            raise SettingsError("must be positive", item="pool_timeout_s")

    def may_serve(self, *, int8: bool) -> bool:
        """Whether INT8, or full precision, may be served: what neither is asked for nor stepped down to is not made."""
        return self.precision is not (PrecisionChoice.FULL if int8 else PrecisionChoice.INT8)

    @property
    def effective_threads(self) -> int:
        """How many cores to compute on."""
        return self.threads or len(os.sched_getaffinity(0))

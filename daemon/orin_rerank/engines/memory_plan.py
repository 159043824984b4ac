"""What a machine has memory for: how long a query with one document may be, how many packs in flight, and the rest.

The plan follows from the model, what it is computed in and by, and the machine's memory in all, and from nothing else:
never from what happens to be free. So `build` and `serve` come to the same one, and compile and look for the same
optimisation profiles. Whether as much is free is asked before anything is taken (`MemoryPlan.check_free`).

::

    memory in all - reserve of the system >= weights + slots * (buffers + scratch) + caches + overhead

`engines.memory_planner` chooses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.footprint import EngineKind, build_bytes
from orin_rerank.errors import MemoryShortError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orin_rerank.engines.capacity import ImageCapacity, PackCapacity
    from orin_rerank.engines.host_memory import HostMemory
    from orin_rerank.graph.architecture import Architecture
    from orin_rerank.graph.builder import Precision
    from orin_rerank.prompt.profile import ImageProfile

__all__ = ["MemoryBudget", "MemoryNeeds", "MemoryPlan", "ModelSize", "gib"]

_GIB: Final = 1 << 30
_STEP: Final = 256 << 20
"""Memory in all is rounded down to this: a kernel's own share of it varies a little from boot to boot."""


def gib(nbytes: int) -> str:
    """For people, such as `7.6 GiB`."""
    return f"{nbytes / _GIB:.1f} GiB"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What of a model its memory depends on.

    Attributes:
        architecture: Its dimensions.
        image: How it takes images; None for a text-only model.
        max_tokens: Longest prefix + document, as `PromptProfile` has it.
        suffix_tokens: What comes on top of that: 5 in the published VL models, else 0.
        stored_bytes: Size of the weight file of a precision, where one is at hand: places that were left wide make one
            larger than the dimensions tell.
    """

    architecture: Architecture
    image: ImageProfile | None
    max_tokens: int
    suffix_tokens: int = 0
    stored_bytes: Mapping[Precision, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory of a machine.

    Attributes:
        total_bytes: Of what computes: the GPU's own memory where it has some, else the machine's.
        reserve_bytes: What is left to the system and to others.
        shared: Whether processor and GPU share this memory.
    """

    total_bytes: int
    reserve_bytes: int
    shared: bool = True

    @property
    def usable_bytes(self) -> int:
        """What may be taken."""
        return max(0, self.total_bytes - self.reserve_bytes)

    @classmethod
    def of_machine(cls, total_bytes: int) -> MemoryBudget:
        """Of memory that the system lives in too, as on every Jetson: 1.5 GiB and a 25th are left to it."""
        total = total_bytes // _STEP * _STEP
        return cls(total, 3 * _GIB // 2 + total // 25)

    @classmethod
    def of_processor(cls, total_bytes: int) -> MemoryBudget:
        """Of a processor, which may be a small one: what is reckoned for it is the worst case, and can be swapped."""
        total = total_bytes // _STEP * _STEP
        return cls(total, max(_STEP, total // 8))

    @classmethod
    def of_gpu(cls, total_bytes: int) -> MemoryBudget:
        """Of a GPU with memory of its own."""
        total = total_bytes // _STEP * _STEP
        return cls(total, _STEP + total // 50, shared=False)


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """What a plan comes to, in bytes.

    Attributes:
        weights: The model.
        buffers: The pool, all slots together. On a GPU with memory of its own the host has as much again.
        scratch: Of all slots together.
        caches: Features of images and rows of prefixes that are remembered; the host's.
        overhead: What the GPU takes before anything of the model is there.
        process: The daemon's process, and pictures that are decoded for it; the host's.
    """

    weights: int
    buffers: int
    scratch: int
    caches: int
    overhead: int
    process: int

    @property
    def total(self) -> int:
        """Of one memory that holds it all."""
        return self.device + self.caches + self.process

    @property
    def device(self) -> int:
        """Of a GPU that has memory of its own."""
        return self.weights + self.buffers + self.scratch + self.overhead

    @property
    def host(self) -> int:
        """Of the machine beside such a GPU."""
        return self.buffers + self.caches + self.process


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How a model is served in the memory that there is.

    Attributes:
        model: The model, with its own limits.
        precision: What it is computed in.
        kind: What computes it.
        budget: The machine's memory.
        max_tokens: Longest prefix + document, counted as `PromptProfile.max_tokens` is; at most the model's own.
        slots: Packs in flight at a time.
        token_budget: Most tokens of a pack, but for one that a long prefix or document makes longer.
        image: How images are taken: as the model does, or smaller where a picture would leave a pair too little room.
        capacity: Of each slot, for packs.
        images: Of each slot, for runs of the vision encoder.
        workspace_bytes: Scratch memory of one slot that TensorRT's builder may plan for, 0 where nothing is compiled:
            as much as fits, for what it needs is known only once it has compiled. It keeps to the limit or fails.
        feature_cache_bytes: For features of images seen lately.
        prefix_cache_bytes: For keys and values of prefixes seen lately.
        picture_bytes: For decoded pictures that wait; none for a text-only model.
        needs: What it comes to.
    """

    model: ModelSize
    precision: Precision
    kind: EngineKind
    budget: MemoryBudget
    max_tokens: int
    slots: int
    token_budget: int
    image: ImageProfile | None
    capacity: PackCapacity
    images: ImageCapacity | None
    workspace_bytes: int
    feature_cache_bytes: int
    prefix_cache_bytes: int
    picture_bytes: int
    needs: MemoryNeeds

    @property
    def longest_pair(self) -> int:
        """Most tokens of a prefix and one of its documents together."""
        return self.max_tokens + self.model.suffix_tokens

    @property
    def prefix_rows(self) -> int:
        """Longest prefix that is remembered, in tokens."""
        return min(self.capacity.keep_rows, self.prefix_cache_bytes // self.capacity.prefix_row_bytes)

    @property
    def shortened(self) -> bool:
        """Whether pairs are cut shorter than the model would take them."""
        return self.max_tokens < self.model.max_tokens

    @property
    def limits(self) -> str:
        """What is cut, for people; empty where nothing is but what the model itself cannot take."""
        if not self.shortened:
            return ""
        return (
            f"a query with a document is cut at {self.max_tokens:,} tokens where the model takes "
            f"{self.model.max_tokens:,}: that is what memory holds, or what was set"
        )

    @property
    def needed_bytes(self) -> int:
        """What is needed of the budget's memory."""
        return self.needs.total if self.budget.shared else self.needs.device

    @property
    def build_bytes(self) -> int:
        """What the process that compiles its plans takes at its peak; 0 where nothing is compiled."""
        if self.kind is not EngineKind.TENSORRT:
            return 0
        return build_bytes(self.model.architecture, self.precision, self.needs.scratch // self.slots)

    @property
    def start_bytes(self) -> int:
        """What is taken when the engine is made, of the memory that it computes in.

        A processor's buffers take memory only as far as they are written to: one slot must be able to run.
        """
        needs = self.needs
        if self.kind.on_gpu:
            return needs.device
        return needs.weights + (needs.buffers + needs.scratch) // self.slots

    def check_build(self, host: HostMemory) -> None:
        """Makes sure, before a graph is compiled, that there is enough memory for it.

        Args:
            host: The machine's memory. Most of what a builder takes is the host's, and can be swapped.

        Raises:
            MemoryShortError: If there is not.
        """
        needed, free = self.build_bytes, host.available_bytes + host.swap_free_bytes
        if free < needed:
            raise MemoryShortError(
                f"compiling {self.precision.value} takes {gib(needed)} at its peak and {gib(free)} are free, swap "
                f"included: stop other programs that use memory, or add {gib(needed - free)} of swap for the build",
                needed_bytes=needed,
                available_bytes=free,
            )

    def check_free(self, free_bytes: int, host_free_bytes: int | None = None) -> None:
        """Makes sure, before anything is taken, that there is enough.

        Args:
            free_bytes: What is free of the budget's memory.
            host_free_bytes: What is free of the machine's, where the GPU has its own.

        Raises:
            MemoryShortError: If there is not.
        """
        checks = [("free", self.start_bytes, free_bytes)]
        if host_free_bytes is not None:
            checks.append(("free beside the GPU", self.needs.buffers, host_free_bytes))
        for where, needed, free in checks:
            if free < needed:
                raise MemoryShortError(
                    f"{self.precision.value} needs {gib(needed)} to start and {gib(free)} are {where}; stop other "
                    "programs that use memory (a restart frees what the GPU's allocator keeps back), or set a lower "
                    "limit of tokens",
                    needed_bytes=needed,
                    available_bytes=free,
                )

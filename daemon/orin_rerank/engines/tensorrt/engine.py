"""The TensorRT engine: a bundle's graphs, compiled for the GPU of this machine.

Every slot of the pool has a lane: a stream, and contexts of both plans. So while one slot's pack is on the GPU, another
thread lays out the next one in another slot. What it writes there is what the GPU reads, wherever the two share one
memory.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from orin_rerank.engines.cuda_errors import let_go
from orin_rerank.engines.feeding import (
    image_batches,
    image_features,
    image_inputs,
    images_per_run,
    mark_unwritten,
    pack_inputs,
    pack_outputs,
)
from orin_rerank.engines.host_work import HostWork
from orin_rerank.engines.memory import ALIGNMENT, cuda_block
from orin_rerank.engines.pool import BufferPool, ImageCapacity
from orin_rerank.engines.port import EngineInfo
from orin_rerank.engines.tensorrt.runtime import DeviceArray, PlanLane
from orin_rerank.errors import InternalError, PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from orin_rerank.engines.cuda import CudaThread, Stream
    from orin_rerank.engines.cuda_driver import DeviceMemory, Driver, DriverStream
    from orin_rerank.engines.memory import Block
    from orin_rerank.engines.pool import PackCapacity, PoolCounters
    from orin_rerank.engines.port import Probe
    from orin_rerank.engines.tensorrt.runtime import LoadedPlan
    from orin_rerank.packing.arrays import Features, PackArrays, PackLayout
    from orin_rerank.prompt.encoded import EncodedImage
    from orin_rerank.prompt.profile import ImageProfile

    NamedArrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

__all__ = ["TensorRtEngine"]


@dataclass(frozen=True, slots=True)
class _Lane:
    """What one slot of the pool computes with."""

    stream: Stream
    scratch: DeviceMemory | None
    text: PlanLane
    vision: PlanLane | None

    def free(self) -> None:
        """Frees the contexts, and after them the memory that they use. In the CUDA thread."""
        self.text.close()
        if self.vision is not None:
            self.vision.close()
        if self.scratch is not None:
            self.scratch.free()


class TensorRtEngine:
    """Runs two plans behind the engines' port.

    Args:
        cuda: The GPU that the plans were loaded on, which the engine closes.
        text: The decoder's plan.
        vision: The vision encoder's plan, or None for a text-only model.
        image: How the model takes images; goes with `vision`.
        capacity: Of each buffer.
        slots: Packs in flight at a time.
        precision: What the plans compute in, for `info`.
        pool_timeout_s: How long a pack waits for a buffer.

    Raises:
        PlanError: If the decoder's plan was compiled for smaller packs or another model.
        EngineError: If memory runs out.
        DeviceLostError: If the GPU is gone.
    """

    def __init__(
        self,
        cuda: CudaThread,
        text: LoadedPlan,
        vision: LoadedPlan | None,
        image: ImageProfile | None,
        capacity: PackCapacity,
        *,
        slots: int,
        precision: str,
        pool_timeout_s: float,
    ) -> None:
        self._cuda = cuda
        self._image = image
        self._host = HostWork(for_gpu=True)
        self._info = EngineInfo("tensorrt", precision, capacity.tokens, capacity.documents, slots)
        self._plans = [text] if vision is None else [text, vision]
        self._lanes: list[_Lane] = []
        with contextlib.ExitStack() as undone:
            undone.callback(cuda.close)  # lanes, plans and TensorRT go in its thread
            _check_capacity(text, capacity)
            images = None
            if vision is not None and image is not None:
                images = ImageCapacity.of_model(image, capacity)
            self._pool = BufferPool(capacity, slots, pool_timeout_s, images=images, allocate=cuda_block(cuda))
            undone.callback(self._pool.close)
            for _ in range(slots):
                self._lanes.append(self._open_lane())
            self._undone = undone.pop_all()

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""
        return self._info

    @property
    def pool(self) -> PoolCounters:
        """State of its buffers."""
        return self._pool.counters

    def holds(self, layout: PackLayout) -> bool:
        """Whether the buffers are large enough for a pack laid out so; the plan then is too."""
        return self._pool.capacity.holds(layout)

    def arrays(self, layout: PackLayout) -> AbstractContextManager[PackArrays]:
        """Lends buffers, cut to a layout; they go back at the end of the context."""
        return self._pool.lend(layout)

    def run(self, arrays: PackArrays, probe: Probe | None = None) -> None:
        """Runs the decoder over a packed sequence, writing `arrays.margin` and `arrays.kept`."""
        lane = self._lanes[self._pool.slot_of(arrays.ids)]
        inputs = pack_inputs(arrays, visual=lane.vision is not None)
        self._execute(lane.stream, lane.text, inputs, pack_outputs(arrays), probe)

    def encode_images(self, images: Sequence[EncodedImage], probe: Probe | None = None) -> list[Features]:
        """Runs the vision encoder on images of one common grid; in several runs where not all fit into one."""
        capacity = self._pool.images
        if capacity is None:
            raise InternalError("a text-only model was given images")
        batches = image_batches(images, self._per_run(images, capacity), probe)
        return [features for batch in batches for features in self._encode(batch, probe)]

    def close(self) -> None:
        """Waits for the runs in flight, then frees buffers, contexts, plans and the GPU; see `Engine.close`."""
        self._pool.drain()
        self._host.close()
        self._undone.close()

    def _per_run(self, images: Sequence[EncodedImage], capacity: ImageCapacity) -> int:
        """How many of some images of one grid both the buffers and a profile hold."""
        _, plan = self._plans
        count = images_per_run(images, capacity)
        each = images[0].grid[0] * images[0].grid[1]
        while count > 1 and not plan.holds({"patches": count * each, "position_index": each}):
            count //= 2
        return count

    def _encode(self, images: Sequence[EncodedImage], probe: Probe | None) -> list[Features]:
        assert self._image is not None
        each = images[0].grid[0] * images[0].grid[1]
        with self._pool.lend_for_images(len(images), each) as arrays:
            lane = self._lanes[self._pool.slot_of(arrays.patches)]
            assert lane.vision is not None
            inputs = image_inputs(arrays, images, self._image, self._host)
            with self._host.turn():
                self._execute(lane.stream, lane.vision, inputs, {"features": arrays.features}, probe)
            return image_features(arrays, images, self._host)

    def _open_lane(self) -> _Lane:
        nbytes = max(plan.scratch_bytes for plan in self._plans)
        stream = self._cuda.stream()

        def enqueue(driver: Driver, _: DriverStream) -> _Lane:
            scratch = driver.device_memory(nbytes) if nbytes else None
            address = 0 if scratch is None else scratch.address
            try:
                lanes = [PlanLane(plan, stream.handle, address, nbytes) for plan in self._plans]
            except BaseException as error:
                let_go(error)  # no context of this lane may outlive its memory
                if scratch is not None:
                    scratch.free()
                raise
            text, *vision = lanes
            lane = _Lane(stream, scratch, text, vision[0] if vision else None)
            self._cuda.at_end(lane.free)
            return lane

        return self._cuda.run(stream, enqueue)

    def _execute(
        self, stream: Stream, lane: PlanLane, inputs: NamedArrays, outputs: NamedArrays, probe: Probe | None
    ) -> None:
        """Runs a plan on arrays of one slot and waits for it."""
        block = self._pool.block
        bound = _bind(block, {**inputs, **outputs})
        if probe is not None:
            self._execute_probed(stream, lane, (inputs, outputs), probe)
            return

        marked = mark_unwritten(outputs)

        def enqueue(driver: Driver, raw: DriverStream) -> None:
            block.enqueue_upload([*inputs.values(), *marked], driver, raw)
            lane.enqueue(bound)
            block.enqueue_download(outputs.values(), driver, raw)

        self._cuda.run(stream, enqueue)

    def _execute_probed(
        self, stream: Stream, lane: PlanLane, arrays: tuple[NamedArrays, NamedArrays], probe: Probe
    ) -> None:
        """The same with what a probe brings and asks for, in memory that is taken for this run alone."""
        inputs, outputs = arrays
        every = {**inputs, **probe.inputs}
        shapes = {name: array.shape for name, array in every.items()}
        given = self._cuda.call(lambda _: lane.output_shapes(shapes))
        specs = lane.plan.tensors
        wanted = {name: (given[name], specs[name].dtype) for name in probe.outputs}
        brought = {name: (array.shape, array.dtype) for name, array in probe.inputs.items()}
        regions = {**brought, **wanted}
        sizes = {name: _padded(int(np.prod(shape)) * dtype.itemsize) for name, (shape, dtype) in regions.items()}
        block = cuda_block(self._cuda)(max(ALIGNMENT, sum(sizes.values())))
        try:
            views, begin = {}, 0
            for name, (shape, dtype) in regions.items():
                count = int(np.prod(shape))
                views[name] = block.host[begin : begin + count * dtype.itemsize].view(dtype).reshape(shape)
                begin += sizes[name]
            for name, array in probe.inputs.items():
                np.copyto(views[name], array)
            bound = {**_bind(self._pool.block, {**inputs, **outputs}), **_bind(block, views)}

            def enqueue(driver: Driver, raw: DriverStream) -> None:
                self._pool.block.enqueue_upload(inputs.values(), driver, raw)
                block.enqueue_upload([views[name] for name in brought], driver, raw)
                lane.enqueue(bound)
                self._pool.block.enqueue_download(outputs.values(), driver, raw)
                block.enqueue_download([views[name] for name in wanted], driver, raw)

            self._cuda.run(stream, enqueue)
            probe.results.update({name: views[name].copy() for name in wanted})
        finally:
            block.close()


def _bind(block: Block, arrays: NamedArrays) -> dict[str, DeviceArray]:
    return {name: DeviceArray(block.address_of(a), a.shape, a.dtype) for name, a in arrays.items()}


def _padded(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGNMENT


def _check_capacity(text: LoadedPlan, capacity: PackCapacity) -> None:
    """Makes sure that the decoder's plan takes every pack that the buffers hold."""
    c = capacity
    smallest = _pack_shapes(c, tokens=1, documents=1, visual=1, known=1, keep=1)
    largest = _pack_shapes(
        c, tokens=c.tokens, documents=c.documents, visual=c.visual_rows, known=c.known_rows, keep=c.keep_rows
    )
    missing = sorted(smallest.keys() - text.tensors.keys())
    if missing:
        raise PlanError(f"was compiled from another graph: it lacks {', '.join(missing)}", item=text.name)
    kept_in = text.tensors["known"].dtype
    if kept_in != np.dtype(c.product_dtype):
        raise InternalError(f"keys and values are {kept_in}, their buffers not", item=text.name)
    if not text.covers(smallest, largest):
        raise PlanError("was compiled for another model, or for smaller packs than the buffers hold", item=text.name)


def _pack_shapes(
    c: PackCapacity, *, tokens: int, documents: int, visual: int, known: int, keep: int
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("ids", "prefix_id", "document_id"), (tokens,)),
        **dict.fromkeys(("cos", "sin"), (tokens, c.half_head)),
        "last": (documents,),
        "known": (c.layers, 2, known, c.kv_heads, 2 * c.half_head),
        "known_id": (known,),
        "keep": (keep,),
    }
    if c.visual_rows:
        shapes["visual_index"] = (tokens,)
        for name in ("visual", *(f"deepstack_{tap}" for tap in range(c.taps))):
            shapes[name] = (visual, c.hidden)
    return shapes

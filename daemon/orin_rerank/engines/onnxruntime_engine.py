"""The ONNX Runtime engine, on the processor or on an NVIDIA GPU.

On the processor packs run side by side, one to a core, rather than one after the other on all cores: a pack is a long
chain of small operators, and each would have to be shared out, waited for and joined again. Measurements are in
docs/benchmarks.md. On a GPU two slots are enough: one pack's host work is done while another's is computed
(docs/device-figures.md).

Both are one class. What differs is where the buffers lie, and how a session is made.
"""

from __future__ import annotations

import contextlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from orin_rerank.engines.cuda_errors import as_engine_error
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
from orin_rerank.engines.memory import PlainBlock, cuda_block
from orin_rerank.engines.onnxruntime_sessions import cpu_session, cuda_session
from orin_rerank.engines.pool import BufferPool, ImageCapacity
from orin_rerank.engines.port import EngineInfo
from orin_rerank.errors import DeviceLostError, InternalError, OrinRerankError
from orin_rerank.graph.attention import page_rows
from orin_rerank.packing.pages import paged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy.typing as npt

    from orin_rerank.engines.cuda import CudaThread
    from orin_rerank.engines.memory import Block
    from orin_rerank.engines.pool import PackCapacity, PoolCounters
    from orin_rerank.engines.port import Probe
    from orin_rerank.packing.arrays import Features, PackArrays, PackLayout
    from orin_rerank.prompt.encoded import EncodedImage
    from orin_rerank.prompt.profile import ImageProfile

__all__ = ["OnnxRuntimeEngine"]


class OnnxRuntimeEngine:
    """Runs a bundle's graphs on the CPU execution provider, or on the CUDA one.

    Args:
        text: The decoder graph.
        vision: The vision encoder graph, or None for a text-only model.
        image: How the model takes images; goes with `vision`.
        capacity: Of each buffer.
        threads: Packs in flight at a time. On the processor each is computed by one thread.
        precision: What the graphs compute in, for `info`.
        pool_timeout_s: How long a pack waits for a buffer.
        weights: Folder of the weight file, where it does not lie beside the graphs.
        images: Of each buffer, for runs of the vision encoder; None means what suits a processor.
        cuda: The GPU to compute on, which the engine closes; None means the processor.
        allocate: Where buffers lie; None means where the GPU, or the processor, has them best.

    Raises:
        BundleError: If ONNX Runtime does not take a graph.
        EngineError: If the GPU cannot be used.
    """

    def __init__(
        self,
        text: Path,
        vision: Path | None,
        image: ImageProfile | None,
        capacity: PackCapacity,
        *,
        threads: int,
        precision: str,
        pool_timeout_s: float,
        weights: Path | None = None,
        images: ImageCapacity | None = None,
        cuda: CudaThread | None = None,
        allocate: Callable[[int], Block] | None = None,
    ) -> None:
        self._image = image
        self._cuda = cuda
        self._host = HostWork(for_gpu=cuda is not None)
        try:
            self._text = self._session(text, weights)
            self._vision = self._session(vision, weights) if vision is not None else None
            self._paged = any(node.name == "page_row" for node in self._text.get_inputs())
            self._page_rows = page_rows(2 * capacity.half_head)
            if images is None and vision is not None and image is not None:
                images = ImageCapacity.of_model(image, capacity)
            self._streams = [] if cuda is None else [cuda.stream() for _ in range(threads)]
            self._pool = BufferPool(  # last, since nothing else that fails would give it back
                capacity,
                threads,
                pool_timeout_s,
                images=images,
                allocate=allocate or (PlainBlock if cuda is None else cuda_block(cuda)),
            )
        except BaseException:
            if cuda is not None:
                cuda.close()
            raise
        name = "onnxruntime-cpu" if cuda is None else "onnxruntime-cuda"
        self._info = EngineInfo(name, precision, capacity.tokens, capacity.documents, threads)

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""
        return self._info

    @property
    def pool(self) -> PoolCounters:
        """State of its buffers."""
        return self._pool.counters

    def holds(self, layout: PackLayout) -> bool:
        """Whether the buffers are large enough for a pack laid out so."""
        return self._pool.capacity.holds(layout)

    def arrays(self, layout: PackLayout) -> AbstractContextManager[PackArrays]:
        """Lends buffers, cut to a layout; they go back at the end of the context."""
        return self._pool.lend(layout)

    def run(self, arrays: PackArrays, probe: Probe | None = None) -> None:
        """Runs the decoder over a packed sequence, writing `arrays.margin` and `arrays.kept`."""
        inputs = pack_inputs(arrays, visual=self._vision is not None, masked=not self._paged)
        pages = paged(arrays, self._page_rows) if self._paged else {}
        self._run(self._text, inputs, pack_outputs(arrays), probe, pages)

    def encode_images(self, images: Sequence[EncodedImage], probe: Probe | None = None) -> list[Features]:
        """Runs the vision encoder on images of one common grid; in several runs where the buffers hold fewer."""
        capacity = self._pool.images
        if self._vision is None or capacity is None:
            raise InternalError("a text-only model was given images")
        batches = image_batches(images, images_per_run(images, capacity), probe)
        return [features for batch in batches for features in self._encode(batch, probe)]

    def close(self) -> None:
        """Waits for the runs in flight, then frees the sessions, the buffers and the GPU; see `Engine.close`."""
        self._pool.drain()
        self._host.close()
        self._text = self._vision = None
        try:
            self._pool.close()
        finally:
            if self._cuda is not None:
                self._cuda.close()

    def _session(self, graph: Path, weights: Path | None) -> Any:
        return cpu_session(graph, weights) if self._cuda is None else cuda_session(graph, weights, self._cuda.ordinal)

    def _encode(self, images: Sequence[EncodedImage], probe: Probe | None) -> list[Features]:
        assert self._image is not None
        each = images[0].grid[0] * images[0].grid[1]
        with self._pool.lend_for_images(len(images), each) as arrays:
            inputs = image_inputs(arrays, images, self._image, self._host)
            with self._host.turn():
                self._run(self._vision, inputs, {"features": arrays.features}, probe)
            return image_features(arrays, images, self._host)

    def _run(
        self,
        session: Any,
        inputs: Mapping[str, npt.NDArray[Any]],
        outputs: Mapping[str, npt.NDArray[Any]],
        probe: Probe | None,
        small: Mapping[str, npt.NDArray[Any]] = MappingProxyType({}),
    ) -> None:
        """Runs on the buffers' own memory, or on its mirror.

        The arrays are views of one slot, but for those in `small`, and what a probe brings or asks for: those ONNX
        Runtime copies.
        """
        block = self._pool.block
        with self._typed_errors():
            binding = self._bind(session, inputs, outputs, probe, small)
        self._transfer(block.enqueue_upload, [*inputs.values(), *mark_unwritten(outputs)])
        with self._typed_errors():
            session.run_with_iobinding(binding)
        self._transfer(block.enqueue_download, outputs.values())
        if probe is not None:
            with self._typed_errors():
                values = binding.get_outputs()[len(outputs) :]
                probe.results.update(zip(probe.outputs, (value.numpy() for value in values), strict=True))

    def _bind(
        self,
        session: Any,
        inputs: Mapping[str, npt.NDArray[Any]],
        outputs: Mapping[str, npt.NDArray[Any]],
        probe: Probe | None,
        small: Mapping[str, npt.NDArray[Any]],
    ) -> Any:
        """Tells ONNX Runtime where everything lies; what does not lie in the block it copies at once."""
        block = self._pool.block
        where = "cuda" if block.on_device else "cpu"
        ordinal = self._cuda.ordinal if self._cuda is not None and block.on_device else 0
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_input(name, where, ordinal, array.dtype, array.shape, block.address_of(array))
        for name, array in outputs.items():
            binding.bind_output(name, where, ordinal, array.dtype, array.shape, block.address_of(array))
        for name, array in {**small, **(probe.inputs if probe is not None else {})}.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name in probe.outputs if probe is not None else ():
            binding.bind_output(name, "cpu")
        return binding

    def _transfer(self, enqueue: Callable[..., None], arrays: Iterable[npt.NDArray[Any]]) -> None:
        """Brings arrays of one slot to the other side, on the slot's stream, where there are two."""
        if self._cuda is None or not self._pool.block.copies:
            return
        values = list(arrays)
        stream = self._streams[self._pool.slot_of(values[0])]
        self._cuda.run(stream, lambda driver, raw: enqueue(values, driver, raw))

    @contextlib.contextmanager
    def _typed_errors(self) -> Iterator[None]:
        """Surrounds whatever is asked of ONNX Runtime while a pack is computed; it may copy, too, and so meet a loss.

        Raises:
            DeviceLostError: If the GPU is lost, by this call or before.
            EngineError: If the call fails.
        """
        if self._cuda is not None:
            self._cuda.check()
        try:
            yield
        except OrinRerankError:
            raise
        except Exception as error:  # see onnxruntime_sessions._session
            typed = as_engine_error(error, "ONNX Runtime failed")
            if self._cuda is not None:
                if isinstance(typed, DeviceLostError):
                    raise self._cuda.lose(typed.message) from error
                # What it had begun may still use the buffers; and its words may not tell that the GPU is lost.
                self._cuda.call(lambda driver: driver.synchronize())
            raise typed from error

"""The ONNX Runtime engine, on the processor.

Packs run side by side, one to a core, rather than one after the other on all cores: a pack is a long chain of small
operators, and each would have to be shared out, waited for and joined again. Measurements are in docs/benchmarks.md.
"""

from __future__ import annotations

import functools
import platform
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from orin_rerank.engines.pool import BufferPool, PackCapacity, PoolCounters, aligned_memory
from orin_rerank.engines.port import EngineInfo, Probe
from orin_rerank.errors import BundleError, EngineError, InternalError
from orin_rerank.prompt.patches import patch_width, write_patches
from orin_rerank.prompt.vision import VisionGeometry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from orin_rerank.packing.arrays import PackArrays, PackLayout
    from orin_rerank.prompt.encoded import EncodedImage, Float32Array
    from orin_rerank.prompt.profile import ImageProfile

__all__ = ["OnnxRuntimeEngine"]

_TEXT_VALUES: Final = ("ids", "cos", "sin", "prefix_id", "document_id", "last", "known", "known_id", "keep")
_VISUAL_VALUES: Final = ("visual_index", "visual")
_PROCESSOR: Final = Path("/proc/cpuinfo")


class OnnxRuntimeEngine:
    """Runs a bundle's graphs on the CPU execution provider.

    Args:
        text: The decoder graph.
        vision: The vision encoder graph, or None for a text-only model.
        image: How the model takes images; goes with `vision`.
        capacity: Of each buffer.
        threads: Packs in flight at a time, each computed by one thread.
        precision: What the graphs compute in, for `info`.
        pool_timeout_s: How long a pack waits for a buffer.
        weights: Folder of the weight file, where it does not lie beside the graphs.

    Raises:
        BundleError: If ONNX Runtime does not take a graph.
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
    ) -> None:
        self._text = _session(text, weights)
        self._vision = _session(vision, weights) if vision is not None else None
        self._image = image
        self._pool = BufferPool(capacity, threads, pool_timeout_s)
        self._info = EngineInfo("onnxruntime-cpu", precision, capacity.tokens, capacity.documents, threads)
        self._outputs = capacity.taps + 1, capacity.hidden
        self._local = threading.local()

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
        inputs = {name: getattr(arrays, name) for name in _TEXT_VALUES}
        if self._vision is not None:
            inputs.update({name: getattr(arrays, name) for name in _VISUAL_VALUES})
            inputs.update({f"deepstack_{tap}": values for tap, values in enumerate(arrays.deepstack)})
        _run(self._text, inputs, {"margin": arrays.margin, "kept": arrays.kept}, probe)

    def encode_images(self, images: Sequence[EncodedImage], probe: Probe | None = None) -> list[Float32Array]:
        """Runs the vision encoder on images of one common grid."""
        if self._vision is None or self._image is None:
            raise InternalError("a text-only model was given images")
        grid = images[0].grid
        each, tokens = grid[0] * grid[1], images[0].tokens
        patches = self._scratch("patches", each * len(images), patch_width(self._image))
        for i, image in enumerate(images):
            write_patches(image.pixels, self._image, patches[i * each : (i + 1) * each])
        geometry = VisionGeometry.for_grid(grid, self._image)
        taps, hidden = self._outputs
        features = self._scratch("features", taps, tokens * len(images), hidden)
        inputs = {
            "patches": patches,
            "position_index": geometry.position_index,
            "position_weight": geometry.position_weight,
            "cos": geometry.cos,
            "sin": geometry.sin,
        }
        _run(self._vision, inputs, {"features": features}, probe)
        return [features[:, i * tokens : (i + 1) * tokens].copy() for i in range(len(images))]

    def close(self) -> None:
        """Frees the sessions."""
        del self._text, self._vision

    def _scratch(self, name: str, *shape: int) -> Float32Array:
        """This thread's buffer for the vision encoder; grows to the largest image, and is used again."""
        count = int(np.prod(shape))
        block: Float32Array | None = getattr(self._local, name, None)
        if block is None or block.size < count:
            block = aligned_memory(4 * count).view(np.float32)
            setattr(self._local, name, block)
        return block[:count].reshape(shape)


@functools.cache
def _saturates() -> bool:
    """Whether sums of two INT8 products saturate at 16 bits in this processor's kernels, unless others are asked for.

    So they do on x86 without VNNI. With it the others only cost time: a pack takes 1.5 times as long.
    """
    if platform.machine() not in {"x86_64", "AMD64"}:
        return False
    flags = set(_PROCESSOR.read_text(encoding="utf-8").split()) if _PROCESSOR.exists() else set()
    return not flags & {"avx512_vnni", "avx_vnni"}


def _session(graph: Path, weights: Path | None) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if _saturates():
        options.add_session_config_entry("session.x64quantprecision", "1")
    source: str | bytes = str(graph)
    if weights is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights))
        source = graph.read_bytes()
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises classes of its own that share no public base
        raise BundleError(f"ONNX Runtime does not take the graph: {error}", item=graph.name) from error


def _run(
    session: Any, inputs: dict[str, npt.NDArray[Any]], outputs: dict[str, npt.NDArray[Any]], probe: Probe | None
) -> None:
    """Runs on the arrays' own memory: nothing is copied in, and what is copied out is a probe's."""
    binding = session.io_binding()
    if probe is not None:
        inputs = {**inputs, **probe.inputs}
    for name, array in inputs.items():
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    for name, array in outputs.items():
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    if probe is not None:
        for name in probe.outputs:
            binding.bind_output(name, "cpu")
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # see _session
        raise EngineError(f"ONNX Runtime failed: {error}") from error
    if probe is not None:
        values = binding.get_outputs()[len(outputs) :]
        probe.results.update(zip(probe.outputs, (value.numpy() for value in values), strict=True))

"""Writes the weights and graphs of an INT8 bundle from those of a full-precision one.

Smoothing is folded in float32 before anything is rounded: columns of a place's weights are multiplied by its scales,
and the rows that make its channels are divided by them. Dividing a row divides its step and leaves its codes alone, so
what a later place asks of a matrix costs no precision.

A matrix is read in pieces, once for its steps and once for its codes; nothing else grows with the model but the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orin_rerank.engines.bundle import WEIGHTS_FILE, GraphEntry
from orin_rerank.engines.graph_files import write_graph_pair
from orin_rerank.errors import CalibrationError, InternalError
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.places import model_places
from orin_rerank.graph.quantized import QuantizedForm
from orin_rerank.graph.scheme import Mode, Scheme, scale_name
from orin_rerank.graph.text import embedding_name, text_weights
from orin_rerank.graph.vision import POSITION_TABLE, vision_weights
from orin_rerank.graph.weights import WeightFile, WeightSpec, checkpoint_pieces
from orin_rerank.quantization.rounding import quantize_rows, smoothed_pieces, tensor_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Literal

    import numpy.typing as npt

    from orin_rerank.graph.architecture import Architecture
    from orin_rerank.graph.checkpoint import Checkpoint
    from orin_rerank.graph.places import Place

__all__ = ["quantized_layout", "write_graphs", "write_weights"]

_WRITTEN = (
    (Dialect.FUSED, Precision.INT8),
    (Dialect.PRIMITIVE, Precision.INT8_FP16),
    (Dialect.FUSED, Precision.INT8_FP16),
)
_WIDTH = {"F32": 4, "F16": 2, "I8": 1}


def write_weights(
    source: Checkpoint,
    architecture: Architecture,
    scheme: Scheme,
    out: Path,
    *,
    wide: Literal["F16", "F32"] = "F16",
    steps: Mapping[str, npt.NDArray[np.float32]] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> WeightFile:
    """Writes the weight file of an INT8 bundle; it appears under its name only when it is whole.

    Args:
        source: The weights of the full-precision bundle.
        architecture: The model's.
        scheme: What is INT8, and the smoothing.
        out: The folder.
        wide: How matrices that are not INT8 are stored.
        steps: What `rounding.weight_steps` gives for this scheme's smoothing, where it has been computed already;
            saves reading those matrices a second time.
        progress: Called with bytes written and bytes in all.

    Raises:
        CheckpointError: If a tensor is missing, misshapen or not finite; the item names it.
        CalibrationError: If the smoothing takes a weight beyond what it is stored in; the item names the tensor.
    """
    places = model_places(architecture)
    file = quantized_layout(architecture, scheme, wide)
    tensors = _SmoothedTensors.of(source, places, scheme, file.specs, steps or {})
    clipped = file.write(out, tensors, progress)
    if clipped:
        name, count = next(iter(clipped.items()))
        raise CalibrationError(f"{count} of its values, smoothed, exceed what {wide} holds", item=name)
    return file


def quantized_layout(architecture: Architecture, scheme: Scheme, wide: str = "F16") -> WeightFile:
    """The layout of an INT8 bundle's weight file.

    The widest types come first, so that every tensor is aligned to its type; within a type tensors keep the order of
    the full-precision file, in which projections of one input lie side by side, and so do their scales.

    Args:
        architecture: The model's.
        scheme: What is INT8; names every place of the model.
        wide: How matrices that are not INT8 are stored, F16 or F32.
    """
    vl = architecture.vision is not None
    specs = text_weights(architecture.text, vl=vl, matrices=wide)
    if architecture.vision is not None:
        specs += vision_weights(architecture.vision, matrices=wide)
    narrow = {name for place in model_places(architecture) if _is_narrow(scheme, place) for name in place.weights}
    if scheme.embedding:
        narrow.add(embedding_name(vl=vl))
    stored: list[WeightSpec] = []
    for spec in specs:
        if spec.name in narrow:
            stored += [
                WeightSpec(scale_name(spec.name), "F32", spec.shape[:1]),
                WeightSpec(spec.name, "I8", spec.shape),
            ]
        elif spec.name == POSITION_TABLE:
            stored.append(WeightSpec(spec.name, wide, spec.shape))
        else:
            stored.append(spec)
    return WeightFile(WEIGHTS_FILE, sorted(stored, key=lambda spec: -_WIDTH[spec.dtype]))


def write_graphs(out: Path, architecture: Architecture, weights: WeightFile, scheme: Scheme) -> list[GraphEntry]:
    """Writes the graphs of an INT8 bundle: both dialects for GPUs, the faster one for processors.

    Args:
        out: The folder, with the weight file in it.
        architecture: The model's.
        weights: Layout of the weight file.
        scheme: What is INT8.
    """
    return [
        write_graph_pair(
            out,
            architecture,
            weights,
            dialect,
            precision,
            text_form=QuantizedForm(scheme),
            vision_form=QuantizedForm(scheme),
        )
        for dialect, precision in _WRITTEN
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _SmoothedTensors:
    """The tensors of a full-precision bundle, smoothed, and rounded where the layout has them as INT8.

    Attributes:
        source: The full-precision weights.
        columns: For a matrix's name float32 `[in]`, what its columns are multiplied by.
        rows: For a tensor's name float32 `[rows]`, what its rows are divided by.
        scales: The matrix of each tensor of scales.
        steps: Steps of those matrices that are known so far, before rows are divided.
    """

    source: Checkpoint
    columns: Mapping[str, npt.NDArray[np.float32]]
    rows: Mapping[str, npt.NDArray[np.float32]]
    scales: Mapping[str, str]
    steps: dict[str, npt.NDArray[np.float32]]

    @classmethod
    def of(
        cls,
        source: Checkpoint,
        places: Sequence[Place],
        scheme: Scheme,
        specs: Sequence[WeightSpec],
        steps: Mapping[str, npt.NDArray[np.float32]],
    ) -> _SmoothedTensors:
        columns = {name: s for p in places if (s := scheme.smoothing.get(p.name)) is not None for name in p.weights}
        heights = {spec.name: spec.shape[0] for spec in specs}
        rows: dict[str, npt.NDArray[np.float32]] = {}
        for place in places:
            scales = scheme.smoothing.get(place.name)
            if scales is None:
                continue
            divisors = _shared_scales(place, scales)
            for producer in place.producers:
                factors = rows.setdefault(producer.tensor, np.ones(heights[producer.tensor], np.float32))
                factors[producer.begin : producer.begin + len(divisors)] *= divisors
        matrices = {scale_name(spec.name): spec.name for spec in specs if spec.dtype == "I8"}
        return cls(source, columns, rows, matrices, dict(steps))

    def pieces(self, spec: WeightSpec) -> Iterator[npt.NDArray[Any]]:
        """A tensor in pieces."""
        matrix = self.scales.get(spec.name)
        if matrix is not None:
            yield self._matrix_steps(matrix) / self.rows.get(matrix, np.float32(1))
        elif spec.dtype == "I8":
            self.source.entry(spec.name, spec.shape)
            steps, begin = self._matrix_steps(spec.name), 0
            for piece in smoothed_pieces(self.source, spec.name, self.columns.get(spec.name)):
                yield quantize_rows(piece, steps[begin : begin + len(piece)])
                begin += len(piece)
        else:
            yield from self._wide(spec)

    def _matrix_steps(self, name: str) -> npt.NDArray[np.float32]:
        if name not in self.steps:
            self.steps[name] = tensor_steps(self.source, name, self.columns.get(name))
        return self.steps[name]

    def _wide(self, spec: WeightSpec) -> Iterator[npt.NDArray[np.floating[Any]]]:
        columns, rows = self.columns.get(spec.name), self.rows.get(spec.name)
        begin = 0
        for stored in checkpoint_pieces(self.source, spec.name, spec.shape):
            piece = stored
            if columns is not None or rows is not None:
                piece = stored.reshape(len(stored), -1).astype(np.float32)
            if columns is not None:
                piece *= columns
            if rows is not None:
                piece /= rows[begin : begin + len(piece), None]
            begin += len(piece)
            yield piece


def _is_narrow(scheme: Scheme, place: Place) -> bool:
    mode = scheme.places.get(place.name)
    if mode is None:
        raise InternalError("the scheme does not say how this place is computed", item=place.name)
    return mode.mode is not Mode.WIDE


def _shared_scales(place: Place, scales: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """One scale for each row of a place's producers; channels that one row makes must agree on it."""
    if scales.shape != (place.channels,) or not (np.isfinite(scales).all() and (scales > 0).all()):
        raise CalibrationError(f"needs {place.channels} scales, finite and above 0", item=place.name)
    outer, repeat, inner = place.layout
    grouped = scales.reshape(outer, repeat, inner)
    if not place.producers or (grouped != grouped[:, :1]).any():
        raise CalibrationError("its scales cannot be folded into what makes its channels", item=place.name)
    return grouped[:, 0].reshape(-1)

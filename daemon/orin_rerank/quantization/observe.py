"""An engine that looks on: what passes through it is scored as before, and tells a collector its activations."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from orin_rerank.engines.port import Probe
from orin_rerank.engines.wrapper import EngineWrapper
from orin_rerank.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orin_rerank.engines.port import Engine
    from orin_rerank.graph.places import Place
    from orin_rerank.packing.arrays import Features, PackArrays
    from orin_rerank.prompt.encoded import EncodedImage, Int32Array
    from orin_rerank.quantization.ranges import RangeCollector

__all__ = ["ROWS_PER_RUN", "ObservingEngine"]

ROWS_PER_RUN: Final = 16
"""Rows that are drawn from each place in one run. The 8B's places have some 890,000 channels together: 57 MB a run."""

_OUTPUTS: Final = ("maxima", "tails", "samples", "rows")


class ObservingEngine(EngineWrapper):
    """An engine over observed graphs (`graph.probes.ObservedForm`).

    What is collected depends on the packs and images alone, not on threads or order: which rows are drawn follows from
    a pack's tokens or an image's pixels, images are encoded one by one, since sums differ in the last bits with what
    is computed beside them, and an image that is encoded again counts once. Packs must be planned alike, and their
    prefixes not remembered: a runner that forgets images only costs time. Beside what the collector holds, 32 bytes
    are kept for each image.

    Args:
        engine: Runs the graphs; closed with this one.
        collector: Is told what they report. Its text places are those of the decoder's graph, in that order, and its
            vision places those of the vision encoder's; a graph none of whose places it has is run as it is.
        rows_per_run: How many rows are drawn from each place in a run.
    """

    def __init__(self, engine: Engine, collector: RangeCollector, *, rows_per_run: int = ROWS_PER_RUN) -> None:
        super().__init__(engine)
        self._collector = collector
        self._rows = rows_per_run
        self._text = [place for place in collector.places if not place.vision]
        self._vision = [place for place in collector.places if place.vision]
        self._seen: set[bytes] = set()
        self._lock = threading.Lock()

    def run(self, arrays: PackArrays, probe: Probe | None = None) -> None:
        """Runs the decoder and collects what it reports.

        Raises:
            CalibrationError: If an activation is not finite; the item names the place.
        """
        if not self._text:
            self._engine.run(arrays, probe)
            return
        probe = self._probe(probe, arrays.ids, arrays.document_id)
        self._engine.run(arrays, probe)
        self._collect(self._text, probe)

    def encode_images(self, images: Sequence[EncodedImage], probe: Probe | None = None) -> list[Features]:
        """Runs the vision encoder on one image after the other, and collects what it reports.

        Raises:
            CalibrationError: If an activation is not finite; the item names the place.
        """
        if not self._vision:
            return self._engine.encode_images(images, probe)
        features = []
        for image in images:
            own = self._probe(probe, np.frombuffer(image.digest, np.uint8))
            features += self._engine.encode_images([image], own)
            with self._lock:
                is_new = image.digest not in self._seen
                self._seen.add(image.digest)
            if is_new:
                self._collect(self._vision, own)
        return features

    def _probe(self, probe: Probe | None, *contents: npt.NDArray[Any]) -> Probe:
        """A probe that draws rows by a hash of what the run computes."""
        if probe is not None:
            raise InternalError("an engine that observes takes no other probe")
        digest = hashlib.shake_128()
        for array in contents:
            digest.update(array.tobytes())
        return Probe({"sample": _indices(digest.digest(4 * self._rows))}, _OUTPUTS)

    def _collect(self, places: Sequence[Place], probe: Probe) -> None:
        self._collector.add(places, probe.results)


def _indices(digest: bytes) -> Int32Array:
    """int32, not negative, of a hash; the graph takes them modulo a place's rows."""
    return (np.frombuffer(digest, "<u4") >> np.uint32(1)).astype(np.int32)

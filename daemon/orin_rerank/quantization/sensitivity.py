"""What INT8 at each place costs the margins, measured by switching the places on one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orin_rerank.engines.port import Probe
from orin_rerank.engines.wrapper import EngineWrapper
from orin_rerank.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from orin_rerank.engines.port import Engine
    from orin_rerank.graph.places import Place
    from orin_rerank.packing.arrays import Features, PackArrays
    from orin_rerank.prompt.encoded import EncodedImage, Float32Array

__all__ = ["Sensitivity", "SwitchingEngine", "measure_sensitivity"]


class SwitchingEngine(EngineWrapper):
    """An engine over switchable graphs (`graph.probes.SwitchedForm`), in which chosen places compute as in INT8.

    Args:
        engine: Runs the graphs; closed with this one.
        text: The decoder's places that can be switched, in the order of its graph.
        vision: The vision encoder's; empty where its graph has no switches.
    """

    def __init__(self, engine: Engine, text: Sequence[Place], vision: Sequence[Place] = ()) -> None:
        super().__init__(engine)
        self._text, self._vision = [p.name for p in text], [p.name for p in vision]
        self._on: frozenset[str] = frozenset()

    def switch_on(self, places: Collection[str]) -> None:
        """Makes exactly these places INT8, from the next run on."""
        self._on = frozenset(places)
        unknown = self._on - set(self._text) - set(self._vision)
        if unknown:
            raise InternalError("there is no such switch", item=min(unknown))

    def run(self, arrays: PackArrays, probe: Probe | None = None) -> None:
        """Runs the decoder with its switches as they are set."""
        self._engine.run(arrays, probe or self._switches(self._text))

    def encode_images(self, images: Sequence[EncodedImage], probe: Probe | None = None) -> list[Features]:
        """Runs the vision encoder with its switches as they are set."""
        return self._engine.encode_images(images, probe or self._switches(self._vision))

    def _switches(self, names: Sequence[str]) -> Probe | None:
        if not names:
            return None
        return Probe({"active": np.array([name in self._on for name in names], dtype=np.float32)})


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What INT8 costs the margins.

    Attributes:
        shifts: For each place by name, the root mean square by which margins move when it alone is INT8.
        together: The same with all of them INT8.
        spread: Standard deviation of the margins in full precision, to compare these with.
    """

    shifts: dict[str, float]
    together: float
    spread: float

    @property
    def ranking(self) -> list[str]:
        """The places' names, the costliest first."""
        return sorted(self.shifts, key=lambda name: (-self.shifts[name], name))


def measure_sensitivity(
    score: Callable[[Collection[str]], Float32Array],
    places: Sequence[str],
    on_place: Callable[[int, int], None] = lambda _done, _total: None,
) -> Sensitivity:
    """Tries each place alone, and all of them together.

    Args:
        score: Margins of some pairs, always the same ones, with the named places INT8.
        places: Names of the places to try.
        on_place: Told how many runs are done, and of how many.
    """
    total = len(places) + 2
    exact = np.asarray(score(()), dtype=np.float64)
    on_place(1, total)
    shifts = {}
    for number, name in enumerate(places, start=2):
        shifts[name] = _root_mean_square(score((name,)) - exact)
        on_place(number, total)
    together = _root_mean_square(score(places) - exact)
    on_place(total, total)
    return Sensitivity(shifts, together, float(exact.std()))


def _root_mean_square(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))

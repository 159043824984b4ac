"""Which graphs of a bundle an engine runs, and how large its buffers and plans are.

Compiling and serving both go by what is here: a plan that was compiled by other figures would not be found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from orin_rerank.engines.pool import PackCapacity

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.graph.architecture import Architecture
    from orin_rerank.graph.builder import Dialect, Precision

__all__ = ["DOCUMENT_TOKENS", "LADDER", "VISION_PATCHES", "GraphFiles", "capacity_of"]

LADDER: Final = (64, 128, 192, 256, 384, 512, 768, 1024)
"""Pack lengths that are tried."""

DOCUMENT_TOKENS: Final = 64
"""Of a document in the packs that are timed."""

VISION_PATCHES: Final = 1024
"""Most patches of one run of the vision encoder, unless a single image has more."""

_MAX_DOCUMENTS: Final = 256


@dataclass(frozen=True, slots=True)
class GraphFiles:
    """What an engine runs.

    Attributes:
        text: The decoder graph.
        vision: The vision encoder graph, None for a text-only model.
        precision: What they compute in, for people, such as `fp32`.
        weights: Folder of the weight file, where it does not lie beside the graphs.
    """

    text: Path
    vision: Path | None
    precision: str
    weights: Path | None = None

    @classmethod
    def of_bundle(cls, bundle: Bundle, dialect: Dialect, precision: Precision) -> GraphFiles:
        """A pair of a bundle's own graphs.

        Raises:
            BundleError: If the bundle has none such.
        """
        graph = bundle.graph(dialect, precision)
        vision = None if graph.vision is None else bundle.folder / graph.vision
        return cls(bundle.folder / graph.text, vision, graph.precision.value)


def capacity_of(
    architecture: Architecture,
    settings: EngineSettings,
    longest_pair: int,
    *,
    key_value_dtype: npt.DTypeLike = np.float32,
) -> PackCapacity:
    """How large an engine's buffers must be to serve a model.

    Args:
        architecture: The model's.
        settings: The engine's.
        longest_pair: Most tokens of a query with one document.
        key_value_dtype: What the graphs compute matrix products in.
    """
    # A pack within the budget and one more prefix than planned, or a single document at the limit. Planning counts the
    # known prefixes of a pack as free; a pack that has more of them than fits is run in parts.
    # measure_budget needs room for two segments of its own, however short the model's prompts are.
    tokens = (settings.token_budget or LADDER[-1]) + max(longest_pair, 2 * DOCUMENT_TOKENS)
    return PackCapacity.of_model(architecture, tokens=tokens, documents=_MAX_DOCUMENTS, key_value_dtype=key_value_dtype)

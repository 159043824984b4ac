"""Before a model serves: does it give the margins that the reference implementation gave?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.bundle import GOLDEN_FILE, Bundle
from orin_rerank.errors import BundleError, DatasetError, SelfTestError
from orin_rerank.evaluation.dataset import parse_content
from orin_rerank.prompt.content import Content, RerankInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orin_rerank.lifecycle.model import LoadedModel

__all__ = ["GoldenPair", "read_golden_pairs", "self_test"]

TOLERANCE: Final = 1e-3
"""How far a float32 engine's margin may be from the reference's; a margin is typically between -10 and 10."""


@dataclass(frozen=True, slots=True)
class GoldenPair:
    """A query, a document and the reference's margin."""

    query: Content
    document: Content
    instruction: str | None
    margin: float


def read_golden_pairs(bundle: Bundle) -> Iterator[GoldenPair]:
    """Yields the golden pairs that a bundle ships; none if it ships none.

    Raises:
        BundleError: If they are malformed.
    """
    if GOLDEN_FILE not in bundle.manifest.files:
        return
    path = bundle.folder / GOLDEN_FILE
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        place = f"{GOLDEN_FILE}:{number}"
        try:
            value = json.loads(line)
            yield GoldenPair(
                query=parse_content(value["query"], root=path.parent, where=f"{place}: query"),
                document=parse_content(value["document"], root=path.parent, where=f"{place}: document"),
                instruction=value.get("instruction"),
                margin=float(value["margin"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, DatasetError) as error:
            raise BundleError(f"is malformed: {error}", item=place) from error


def self_test(model: LoadedModel, pairs: Iterator[GoldenPair]) -> float:
    """Scores golden pairs; also the first real work that a fresh engine does.

    Returns:
        The largest difference from the reference's margins; 0 if there are no pairs.

    Raises:
        SelfTestError: If one is off by more than `TOLERANCE`.
    """
    worst = 0.0
    for number, pair in enumerate(pairs, start=1):
        request = RerankInput(pair.query, [pair.document], pair.instruction)
        margin = float(model.rerank(request).margins[0])
        difference = abs(margin - pair.margin)
        if not difference <= TOLERANCE:  # a golden margin of NaN is a difference too
            raise SelfTestError(
                f"the model gives {margin:.4f} where the reference gave {pair.margin:.4f}",
                item=f"{GOLDEN_FILE}:{number}",
            )
        worst = max(worst, difference)
    return worst

"""Before a model serves: does it give the margins that the reference implementation gave?"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.bundle import GOLDEN_FILE, Bundle
from orin_rerank.errors import BundleError, DatasetError, InvalidRequestError, SelfTestError
from orin_rerank.evaluation.dataset import parse_content
from orin_rerank.prompt.content import Content, RerankInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from orin_rerank.lifecycle.model import LoadedModel
    from orin_rerank.prompt.encoded import Float32Array
    from orin_rerank.prompt.encoder import PromptEncoder

__all__ = [
    "HALF_TOLERANCE",
    "TOLERANCE",
    "GoldenPair",
    "golden_margin",
    "read_golden_pairs",
    "record_golden_pairs",
    "self_test",
    "unchanged_pairs",
    "with_margins",
]

TOLERANCE: Final = 1e-3
"""How far a float32 engine's margin may be from the reference's; a margin is typically between -10 and 10."""

HALF_TOLERANCE: Final = 0.1
"""The same for a float16 engine. Over the 4,000 pairs of the evaluation set the mini's margins were off by at most 0.02
on a GPU, and by 0.0024 as a rule (docs/device-figures.md)."""


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
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}", item=str(path)) from error
    for number, line in enumerate(lines, start=1):
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


def with_margins(pairs: Iterable[GoldenPair], margins: Sequence[float]) -> Iterator[GoldenPair]:
    """Golden pairs with the margins of another engine.

    Raises:
        BundleError: If there is not one margin for each.
    """
    found = list(pairs)
    if len(found) != len(margins):
        raise BundleError(f"{len(found)} pairs, and margins of {len(margins)}", item=GOLDEN_FILE)
    return (replace(pair, margin=margin) for pair, margin in zip(found, margins, strict=True))


def record_golden_pairs(bundle: Bundle, out: Path, score: Callable[[RerankInput], Float32Array]) -> list[str]:
    """Writes a bundle's golden pairs into a bundle derived from it, with the margins of the derived one's engine.

    Args:
        bundle: The full-precision bundle.
        out: The derived bundle's folder.
        score: Gives the margins of a request by the derived bundle's engine.

    Returns:
        The files that were written, by their paths in the derived bundle; none if there are no golden pairs.

    Raises:
        BundleError: If the pairs are malformed.
    """
    if GOLDEN_FILE not in bundle.manifest.files:
        return []
    folder = PurePosixPath(GOLDEN_FILE).parent
    names = [name for name in bundle.manifest.files if folder in PurePosixPath(name).parents]
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.folder / name, out / name)
    values = [json.loads(line) for line in (out / GOLDEN_FILE).read_text(encoding="utf-8").splitlines()]
    for value, pair in zip(values, read_golden_pairs(bundle), strict=True):
        value["margin"] = float(score(RerankInput(pair.query, [pair.document], pair.instruction))[0])
    lines = [json.dumps(value, ensure_ascii=False) + "\n" for value in values]
    (out / GOLDEN_FILE).write_text("".join(lines), encoding="utf-8")
    return names


def unchanged_pairs(pairs: Iterable[GoldenPair], own: PromptEncoder, limited: PromptEncoder) -> Iterator[GoldenPair]:
    """Golden pairs that lower limits leave as they are; of what these cut, the reference's margins say nothing.

    Args:
        pairs: The bundle's.
        own: The prompt path with the model's own limits.
        limited: The one that serves.
    """

    def encoded(encoder: PromptEncoder, pair: GoldenPair) -> tuple[bytes, bytes] | None:
        try:
            request = encoder.encode(RerankInput(pair.query, [pair.document], pair.instruction))
        except InvalidRequestError:  # pictures that do not fit
            return None
        return request.prefix.digest, request.documents[0].digest

    return (pair for pair in pairs if encoded(own, pair) == encoded(limited, pair))


def golden_margin(model: LoadedModel, pair: GoldenPair) -> float:
    """What a model gives a golden pair."""
    return float(model.rerank(RerankInput(pair.query, [pair.document], pair.instruction)).margins[0])


def self_test(model: LoadedModel, pairs: Iterator[GoldenPair], tolerance: float = TOLERANCE) -> float:
    """Scores golden pairs; also the first real work that a fresh engine does.

    Args:
        model: The model.
        pairs: Its bundle's.
        tolerance: How far a margin may be from the recorded one.

    Returns:
        The largest difference from the reference's margins; 0 if there are no pairs.

    Raises:
        SelfTestError: If one is off by more than the tolerance.
    """
    worst = 0.0
    for number, pair in enumerate(pairs, start=1):
        margin = golden_margin(model, pair)
        difference = abs(margin - pair.margin)
        if not difference <= tolerance:  # a golden margin of NaN is a difference too
            raise SelfTestError(
                f"the model gives {margin:.4f} where the reference gave {pair.margin:.4f}",
                item=f"{GOLDEN_FILE}:{number}",
            )
        worst = max(worst, difference)
    return worst

"""Counts what a calibration set covers while it is scored in full precision."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from orin_rerank.errors import CalibrationError, InternalError
from orin_rerank.quantization.coverage import Coverage, Distribution, Modality, PairKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orin_rerank.prompt.encoded import EncodedRequest
    from orin_rerank.prompt.profile import PromptProfile
    from orin_rerank.quantization.calibration_set import CalibrationRequest

__all__ = ["CoverageBuilder"]

_STEP: Final = 0.125
_LARGEST: Final = 64.0
_BINS: Final = int(2 * _LARGEST / _STEP)


class CoverageBuilder:
    """Counts request after request; what it holds does not grow with the set."""

    def __init__(self) -> None:
        self._requests = self._pairs = self._truncated = 0
        self._tokens: Counter[int] = Counter()
        self._images: Counter[int] = Counter()
        self._languages: Counter[str] = Counter()
        self._queries: Counter[Modality] = Counter()
        self._documents: Counter[Modality] = Counter()
        self._margins: dict[tuple[Modality, Modality], _Margins] = {}

    def add(
        self, request: CalibrationRequest, encoded: EncodedRequest, margins: npt.NDArray[np.floating] | Sequence[float]
    ) -> None:
        """Counts a request.

        Args:
            request: The request.
            encoded: The same, encoded.
            margins: `[documents]`: what the full-precision model gave.
        """
        if not len(request.documents) == len(encoded.documents) == len(margins):
            raise InternalError(f"{len(margins)} margins for {len(request.documents)} documents")
        prefix = encoded.prefix
        query = Modality.of(request.query)
        self._requests += 1
        self._languages[request.language] += 1
        self._queries[query] += 1
        self._images.update(image.tokens for image in prefix.images)
        for content, document, margin in zip(request.documents, encoded.documents, margins, strict=True):
            kind = Modality.of(content)
            self._pairs += 1
            self._truncated += bool(prefix.truncated_tokens or document.truncated_tokens)
            self._tokens[len(prefix) + len(document)] += 1
            self._documents[kind] += 1
            self._images.update(image.tokens for image in document.images)
            self._margins.setdefault((query, kind), _Margins()).add(float(margin))

    def coverage(self, profile: PromptProfile, scale: float | None) -> Coverage:
        """The card.

        Args:
            profile: The model's.
            scale: See `margin_scale`; None where it is not known.

        Raises:
            CalibrationError: If nothing was counted.
        """
        tokens = Distribution.of(self._tokens)
        if tokens is None:
            raise CalibrationError("the calibration set is empty", item="pairs")
        groups = self._margins.values()
        apart = None if scale is None else sum(group.told_apart(scale / 2) for group in groups) / self._pairs
        return Coverage(
            requests=self._requests,
            pairs=self._pairs,
            truncated=self._truncated,
            tokens=tokens,
            limit=profile.max_tokens,
            takes_images=profile.image is not None,
            images=Distribution.of(self._images),
            image_count=self._images.total(),
            languages=dict(self._languages.most_common()),
            queries=dict(self._queries.most_common()),
            documents=dict(self._documents.most_common()),
            kinds=tuple(
                PairKind(*kind, group.count, group.relevant / group.count, group.mean, group.spread)
                for kind, group in self._margins.items()
            ),
            relevant=sum(group.relevant for group in groups) / self._pairs,
            spread=math.sqrt(sum(group.squares for group in groups) / self._pairs),
            scale=scale,
            told_apart=apart,
        )


@dataclass(slots=True)
class _Margins:
    """Margins of one kind of pairs, as counts.

    Attributes:
        count: How many.
        relevant: How many are above 0.
        mean: Theirs.
        squares: Sum of the squares of their distances from the mean (Welford 1962).
        bins: How many are in each eighth from -64 to 64.
    """

    count: int = 0
    relevant: int = 0
    mean: float = 0.0
    squares: float = 0.0
    bins: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BINS, np.int64))

    def add(self, margin: float) -> None:
        self.count += 1
        self.relevant += margin > 0
        distance = margin - self.mean
        self.mean += distance / self.count
        self.squares += distance * (margin - self.mean)
        self.bins[min(max(math.floor((margin + _LARGEST) / _STEP), 0), _BINS - 1)] += 1

    @property
    def spread(self) -> float:
        return math.sqrt(self.squares / self.count)

    def told_apart(self, sure: float) -> int:
        """Pairs in the smaller camp, where `sure`, rounded to an eighth, is where a camp begins."""
        steps = round(sure / _STEP)
        middle = _BINS // 2
        return int(min(self.bins[middle + steps :].sum(), self.bins[: middle - steps].sum()))

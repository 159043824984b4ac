"""What a calibration set covers, and whether INT8 can be made from it.

Random tokens and noise give activations too, only not those of real requests. What gives such a set away is that the
model has no firm opinion of it: among pairs of one kind, such as text against picture, its margins lie close together,
and it finds nearly all irrelevant, or nearly all relevant, or is sure of none. How far margins spread differs from
model to model, so they are measured by what this one gives on a judged set. docs/calibration-data.md has the figures
behind the limits.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from orin_rerank.errors import CalibrationError
from orin_rerank.prompt.content import ImagePart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from orin_rerank.prompt.content import Content

__all__ = ["Coverage", "CoverageRules", "Distribution", "Modality", "PairKind", "margin_scale"]


class Modality(str, enum.Enum):
    """What a query or a document is made of."""

    TEXT = "text"
    IMAGE = "image"
    MIXED = "mixed"

    @classmethod
    def of(cls, content: Content) -> Modality:
        """The modality of some content."""
        pictures = {isinstance(part, ImagePart) for part in content}
        if len(pictures) == 2:
            return cls.MIXED
        return cls.IMAGE if True in pictures else cls.TEXT


@dataclass(frozen=True, slots=True)
class CoverageRules:
    """What is asked of a calibration set.

    Attributes:
        least_pairs: With fewer it is refused.
        enough_pairs: With fewer there is a warning.
        spread: Least spread of the margins, as a share of the scale. Random sets reach .62, real ones .89 and more.
        told_apart: Least share of pairs that the model must tell apart; see `Coverage.told_apart`.
        length: Longest prompt, as a share of the model's limit, below which there is a warning.
    """

    least_pairs: int = 32
    enough_pairs: int = 256
    spread: float = 0.75
    told_apart: float = 0.01
    length: float = 0.05


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of a count over a set.

    Attributes:
        least: The smallest.
        median: At least half are no larger.
        p95: At least 95 % are no larger.
        greatest: The largest.
    """

    least: int
    median: int
    p95: int
    greatest: int

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> Distribution | None:
        """From how often each value occurs; None if none does."""
        if not counts:
            return None
        values = sorted(counts)
        reached = np.cumsum([counts[value] for value in values])

        def quantile(share: float) -> int:
            return values[int(np.searchsorted(reached, share * reached[-1]))]

        return cls(values[0], quantile(0.5), quantile(0.95), values[-1])


@dataclass(frozen=True, slots=True)
class PairKind:
    """The pairs of one kind of query and one kind of document.

    Attributes:
        query: The query's modality.
        document: The document's.
        pairs: How many.
        relevant: Share that the full-precision model finds relevant: a margin above 0.
        mean: Of the margins.
        spread: Standard deviation of the margins.
    """

    query: Modality
    document: Modality
    pairs: int
    relevant: float
    mean: float
    spread: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """The card of a set.

    Attributes:
        requests: Its queries.
        pairs: Its pairs of a query and a document.
        truncated: Pairs whose query or document was cut.
        tokens: Length of a pair's prompt.
        limit: The model's longest prompt.
        takes_images: Whether the model does.
        images: Tokens of an image, each time that one occurs; None where none does.
        image_count: How often an image occurs.
        languages: Requests by language; an empty string where none is stated.
        queries: Requests by what the query is made of.
        documents: Pairs by what the document is made of.
        kinds: The pairs by what both are made of.
        relevant: Share of pairs that the full-precision model finds relevant.
        spread: Standard deviation of the margins around the mean of their kind.
        scale: Standard deviation of the model's margins on a judged set; None where it is not known.
        told_apart: Share of the pairs that are in the smaller of two camps: of each kind, those whose margin is above
            half the scale, and those below minus that. Near 0 where the model is sure in one direction only, or not
            at all. None without a scale.
    """

    requests: int
    pairs: int
    truncated: int
    tokens: Distribution
    limit: int
    takes_images: bool
    images: Distribution | None
    image_count: int
    languages: Mapping[str, int]
    queries: Mapping[Modality, int]
    documents: Mapping[Modality, int]
    kinds: tuple[PairKind, ...]
    relevant: float
    spread: float
    scale: float | None
    told_apart: float | None

    def as_dict(self) -> dict[str, object]:
        """The card as JSON takes it."""
        return asdict(self)

    def check(self, rules: CoverageRules | None = None) -> list[str]:
        """Looks whether INT8 can be made from the set.

        Args:
            rules: What is asked of it; None asks the usual.

        Returns:
            Warnings, each a sentence.

        Raises:
            CalibrationError: If it cannot.
        """
        rules = rules or CoverageRules()
        if self.pairs < rules.least_pairs:
            raise CalibrationError(
                f"{self.pairs} pairs are too few to calibrate from; {rules.least_pairs} are the least", item="pairs"
            )
        warnings = self._check_margins(rules)
        if self.pairs < rules.enough_pairs:
            warnings.append(f"{self.pairs} pairs are few; {rules.enough_pairs} or more make ranges steady")
        warnings += self._missing()
        if self.truncated:
            warnings.append(f"{self.truncated} pairs were cut to the model's limit of {self.limit} tokens")
        if self.tokens.greatest < rules.length * self.limit:
            warnings.append(f"the longest prompt has {self.tokens.greatest} tokens, where the model takes {self.limit}")
        return warnings

    def _check_margins(self, rules: CoverageRules) -> list[str]:
        if self.scale is None or self.told_apart is None:
            return ["whether the model understands the set could not be checked: its usual margins are not known"]
        if self.spread < rules.spread * self.scale:
            raise CalibrationError(
                f"the model's margins spread by {self.spread:.2f} only, where it gives {self.scale:.2f} on a judged "
                "set: the set is not made of what the model was trained to judge",
                item="margins",
            )
        if self.told_apart < rules.told_apart:
            raise CalibrationError(
                f"the model tells only {self.told_apart:.1%} of the pairs apart ({rules.told_apart:.0%} is the least): "
                "either the set is not made of real queries and documents, or it has hardly any that belong together, "
                "or hardly any that do not",
                item="margins",
            )
        return []

    def _missing(self) -> list[str]:
        """What the model may be asked for and the set does not show it."""
        warnings = []
        shown = {*self.queries, *self.documents}
        if self.takes_images and shown == {Modality.TEXT}:
            warnings.append("the model takes images, but there are none")
        elif self.takes_images:
            if not shown - {Modality.IMAGE}:
                warnings.append("there is no text but the prompt's own")
            if set(self.queries) == {Modality.TEXT}:
                warnings.append("no query has an image")
            if set(self.documents) == {Modality.TEXT}:
                warnings.append("no document has an image")
        stated = self.languages.keys() - {""}
        if len(stated) == 1:
            warnings.append(f"all queries are in one language, {min(stated)}")
        if not stated:
            warnings.append("no query states its language")
        return warnings


def margin_scale(margins: Sequence[float] | npt.NDArray[np.floating]) -> float:
    """The scale of a model's margins, from what full precision gives on a judged set: their standard deviation.

    Raises:
        CalibrationError: If they do not differ.
    """
    scale = float(np.std(np.asarray(margins, dtype=np.float64)))
    if not scale > 0:
        raise CalibrationError("the full-precision model gives the same margin for every pair", item="margins")
    return scale

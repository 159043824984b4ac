"""What calibrating a model costs, reckoned from its architecture: tokens, bytes and operations, stage by stage.

    python tests/bench/quantization_cost.py

prints the tables of docs/quantization.md. The stages are those of `lifecycle.calibrate`, under the names that its
ledger gives them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orin_rerank.engines.roofline import ModelCounts, image_operations
from orin_rerank.graph.places import model_places, text_places
from orin_rerank.lifecycle.published import MODELS
from orin_rerank.lifecycle.workbench import PACK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orin_rerank.graph.architecture import Architecture

__all__ = ["BOARD_MODES", "OWN", "SHIPPED", "VL_8B", "Board", "Load", "StageCost", "Work", "cost_table", "stages"]

VL_8B = MODELS["vl-8b"].size.architecture


@dataclass(frozen=True, slots=True)
class Load:
    """Data to go through a model once.

    Attributes:
        pairs: Pairs of a query and a document.
        tokens: Tokens of the decoder.
        images: Images that are encoded.
        image_tokens: Tokens of each.
    """

    pairs: int
    tokens: int
    images: int = 0
    image_tokens: int = 0

    def times(self, factor: float) -> Load:
        """So many times as much."""
        return replace(
            self,
            pairs=round(self.pairs * factor),
            tokens=round(self.tokens * factor),
            images=round(self.images * factor),
        )


@dataclass(frozen=True, slots=True)
class Work:
    """What is calibrated on, and what judges.

    Attributes:
        calibration: The calibration set.
        judged: The judged set.
        tried: What each place is tried on.
        attempts: How many plans the gate is asked about.
    """

    calibration: Load
    judged: Load
    tried: Load
    attempts: int = 1


SHIPPED = Work(Load(325, 16_665, 197, 16), Load(4_000, 127_292, 1_067, 16), Load(50, 2_331, 30, 16))
"""The shipped sets, counted with the mini's tokenizer."""

OWN = Work(Load(1_000, 350_000, 300, 512), SHIPPED.judged, Load(48, 16_800, 14, 512))
"""A thousand pairs of 350 tokens, with 300 photographs among them."""


@dataclass(frozen=True, slots=True)
class Board:
    """What a board can do, and how much of that is counted on.

    Attributes:
        name: Of the power mode.
        int8: Dense INT8 operations a second, a multiply-add being two; float16 is half of it.
        memory: Bytes a second of memory.
        share: What is counted on.
        storage: Bytes a second that are read from storage: not a limit but an assumption, for an NVMe drive.
    """

    name: str
    int8: float
    memory: float = 204.8e9
    share: float = 0.5
    storage: float = 1e9


BOARD_MODES = (Board("MAXN", 85e12), Board("50 W", 54e12), Board("30 W", 20e12))


@dataclass(frozen=True, slots=True)
class StageCost:
    """One stage.

    Attributes:
        name: As the ledger has it.
        load: What goes through the model in it.
        operations: Of matrix products, a multiply-add as two.
        int8: Whether those are INT8; else float16.
        memory: Bytes of weights that pass through the board's memory for them.
        read: Bytes of weights read from the bundle, apart from what an engine loads.
        written: Bytes of weights written.
    """

    name: str
    load: Load = Load(0, 0)
    operations: float = 0.0
    int8: bool = False
    memory: float = 0.0
    read: int = 0
    written: int = 0

    def seconds(self, board: Board) -> float:
        """At a share of what a board can do: products or memory, whichever is slower, and then storage."""
        products = self.operations / (board.int8 * (1.0 if self.int8 else 0.5) * board.share)
        return max(products, self.memory / (board.memory * board.share)) + (self.read + self.written) / board.storage


def stages(architecture: Architecture, work: Work, *, wide_bytes: int = 2) -> Iterator[StageCost]:
    """The stages of a calibration in their order.

    Args:
        architecture: The model's.
        work: The data.
        wide_bytes: Bytes of a weight in the full-precision bundle.
    """
    model = _Model(architecture, wide_bytes)
    yield model.run("observing activations", work.calibration)
    yield model.run("judged set in full precision", work.judged)
    yield StageCost("searching smoothing", read=model.searched * wide_bytes)
    yield model.run("observing smoothed activations", work.calibration)
    tries = sum(not p.final for p in text_places(architecture.text, vl=architecture.vision is not None)) + 2
    images = work.tried.images  # the vision encoder is not switched, so its features are remembered
    tried = model.run("trying each place in INT8", replace(work.tried.times(tries), images=images), rounding=True)
    yield replace(tried, read=model.searched * wide_bytes)
    yield StageCost("evening out columns", read=model.evened * wide_bytes)
    for _ in range(work.attempts):
        matrices = model.decoder + model.vision + model.embedding
        # Steps of what was searched are known by then; all else is read for its steps and again for its codes.
        yield StageCost("writing INT8 weights", read=(2 * matrices - model.searched) * wide_bytes, written=matrices)
        yield model.run("judged set in INT8", work.judged, int8=True)


class _Model:
    """Sizes of a model; matrices alone, since everything else is a thousandth of them."""

    def __init__(self, architecture: Architecture, wide_bytes: int) -> None:
        self._architecture, self._text, self._wide_bytes = architecture, architecture.text, wide_bytes
        counts = ModelCounts.of_model(architecture)
        self.decoder, self.vision, self.embedding = counts.decoder, counts.vision, counts.embedding
        # The last layer computes the documents' last tokens alone, but for keys and values.
        self.searched = counts.each_token
        places = model_places(architecture)
        self.evened = sum(p.multiplications for p in places if (p.vision or p.final) and p.producers)

    def run(self, name: str, load: Load, *, int8: bool = False, rounding: bool = False) -> StageCost:
        """A stage in which data goes through the engine.

        Args:
            name: Of the stage.
            load: The data.
            int8: Whether the decoder computes in INT8.
            rounding: Whether it rounds its weights in every run: written once more, and read again.
        """
        text = self._text
        attention = 2 * text.layers * PACK_TOKENS * text.heads * text.head_dim
        operations = 2.0 * load.tokens * (self.searched + attention)
        width = 1 if int8 else self._wide_bytes
        memory = load.tokens / PACK_TOKENS * self.decoder * width * (3 if rounding else 1)
        images = load.images * image_operations(self._architecture, load.image_tokens)
        # Vision computes in float16 whatever the decoder does: twice as long, if the decoder's is INT8.
        operations += images * (2 if int8 else 1)
        memory += load.images * self.vision * self._wide_bytes
        return StageCost(name, load, operations, int8, memory)


def cost_table(architecture: Architecture, work: Work) -> Iterator[str]:
    """Lines of a table in Markdown."""
    yield (
        "| stage | pairs | tokens | 10^12 operations | GB read, written | "
        + " | ".join(f"s, {board.name}" for board in BOARD_MODES)
        + " |"
    )
    yield "|---" * (5 + len(BOARD_MODES)) + "|"
    costs = list(stages(architecture, work))
    for cost in costs:
        times = " | ".join(f"{cost.seconds(board):,.0f}" for board in BOARD_MODES)
        yield (
            f"| {cost.name} | {cost.load.pairs:,} | {cost.load.tokens:,} | {cost.operations / 1e12:,.0f} | "
            f"{cost.read / 1e9:.1f}, {cost.written / 1e9:.1f} | {times} |"
        )
    totals = " | ".join(f"{sum(cost.seconds(board) for cost in costs):,.0f}" for board in BOARD_MODES)
    read, written = (sum(getattr(cost, key) for cost in costs) / 1e9 for key in ("read", "written"))
    tokens, operations = sum(cost.load.tokens for cost in costs), sum(cost.operations for cost in costs) / 1e12
    pairs = sum(cost.load.pairs for cost in costs)
    yield f"| all | {pairs:,} | {tokens:,} | {operations:,.0f} | {read:.1f}, {written:.1f} | {totals} |"


if __name__ == "__main__":
    for work in (SHIPPED, OWN):
        sys.stdout.write("\n".join([*cost_table(VL_8B, work), "", ""]))

"""Shows orin-rerank at work: starts a daemon, asks it for rankings, draws them, and stops it.

Run it with `make demo`, or `python deploy/demo/demo.py --help`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from contact_sheet import Card, RankedCard, Row, draw_sheet
from rankings import RANKINGS, Piece, Ranking
from rich.console import Console
from rich.text import Text
from running_daemon import DemoError, RunningDaemon

from orin_rerank.cli.inputs import Item, to_proto
from orin_rerank.cli.rank import Items, ranking_table
from orin_rerank.errors import OrinRerankError
from orin_rerank.prompt.content import ImagePart, TextPart
from orin_rerank.v1 import rerank_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERE = Path(__file__).resolve().parent
SHEET = Path("build/demo/contact-sheet.png")
SHOWN = 6
"""So many of the ranked documents are shown."""


def main() -> int:
    """Runs the demonstration.

    Returns:
        0 if the daemon answered everything, however it ranked; 1 if not; 130 if interrupted.
    """
    options = _options()
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, _leave)
    started = time.monotonic()
    try:
        pictures = _pictures(options.images)
        rows, as_expected = _show(console, options.bundle, pictures)
        options.sheet.parent.mkdir(parents=True, exist_ok=True)
        draw_sheet(rows, "orin-rerank", _subtitle(rows)).save(options.sheet, optimize=True)
    except (DemoError, OrinRerankError, OSError) as error:
        Console(stderr=True, highlight=False).print(Text(f"demo: error: {error}", style="red"), soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; the daemon is stopped")
        return 130
    console.print(f"[bold]{as_expected} of {len(rows)}[/] rankings have an expected document first")
    console.print(f"contact sheet: {options.sheet}", soft_wrap=True)
    console.print(f"done in {time.monotonic() - started:.1f} s; the daemon is stopped and its state folder is gone")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Starts a daemon, asks it for rankings, draws them, and stops it.")
    parser.add_argument("--bundle", type=Path, metavar="FOLDER", help="model bundle; else that of `orin-rerank serve`")
    parser.add_argument("--images", type=Path, metavar="FOLDER", default=HERE / "images", help="pictures to rank")
    parser.add_argument("--sheet", type=Path, metavar="FILE", default=SHEET, help=f"contact sheet; else {SHEET}")
    return parser.parse_args()


def _leave(_signal: int, _frame: object) -> NoReturn:
    """Ends by SIGTERM as by Ctrl-C: the daemon is stopped on the way out."""
    raise KeyboardInterrupt


def _pictures(folder: Path) -> dict[str, bytes]:
    """The pictures by file name, in the order of their names."""
    pictures = {path.name: path.read_bytes() for path in sorted(folder.glob("*.webp"))}
    if not pictures:
        raise DemoError(f"{folder} holds no .webp pictures")
    return pictures


def _show(console: Console, bundle: Path | None, pictures: Mapping[str, bytes]) -> tuple[list[Row], int]:
    """Starts the daemon, asks every question, and stops it.

    Returns:
        The rankings to draw, and how many have a document first that was expected there.
    """
    rows: list[Row] = []
    as_expected = 0
    started = time.monotonic()

    def tell(detail: str) -> None:
        console.print(Text(f"{time.monotonic() - started:6.1f} s  {detail}", style="dim"))

    console.rule("starting the daemon", align="left")
    tell("orin-rerank serve, in a fresh state folder")
    with RunningDaemon(bundle, on_detail=tell) as daemon:
        model = daemon.client.status().model
        tell(f"serving {model.name}: {model.engine}, {model.precision}, packs of {model.token_budget} tokens")
        for ranking in RANKINGS:
            row, expected = _ask(console, daemon, ranking, pictures)
            rows.append(row)
            as_expected += expected
        console.rule("stopping the daemon", align="left")
    return rows, as_expected


def _ask(console: Console, daemon: RunningDaemon, ranking: Ranking, pictures: Mapping[str, bytes]) -> tuple[Row, bool]:
    """Asks one question and prints the answer."""
    others = tuple(Piece(picture=name) for name in pictures if name != ranking.query.picture)
    documents = ranking.documents or others
    items = Items(_item(ranking.query, pictures), [_item(document, pictures) for document in documents])
    request = rerank_pb2.RerankRequest(
        query=to_proto(items.query.parts), documents=[to_proto(item.parts) for item in items.documents], top_n=SHOWN
    )
    started = time.monotonic()
    response = daemon.client.rerank(request)
    seconds = time.monotonic() - started
    console.print()
    console.rule(f"[bold]{ranking.title}", align="left")
    gloss = f" ({ranking.query.gloss})" if ranking.query.gloss else ""
    console.print(Text(f"query: {ranking.query.name}{gloss}", style="bold"))
    console.print(ranking_table(response, items))
    first = documents[response.results[0].index].name
    as_expected = first in ranking.expected
    verdict = "as expected" if as_expected else f"expected {' or '.join(ranking.expected)}, got {first}"
    style = "green" if as_expected else "red"
    console.print(Text(verdict, style=style), Text(f"({len(documents)} documents in {seconds:.2f} s)", style="dim"))
    return _row(ranking, documents, response, pictures), as_expected


def _item(piece: Piece, pictures: Mapping[str, bytes]) -> Item:
    """Reads a piece; the picture comes before the text, as the model was trained."""
    parts: list[TextPart | ImagePart] = []
    if piece.picture is not None:
        if piece.picture not in pictures:
            raise DemoError(f"there is no picture {piece.picture}")
        parts.append(ImagePart(pictures[piece.picture]))
    if piece.text:
        parts.append(TextPart(piece.text))
    return Item(f"{piece.name} ({piece.gloss})" if piece.gloss else piece.name, tuple(parts))


def _row(
    ranking: Ranking, documents: Sequence[Piece], response: rerank_pb2.RerankResponse, pictures: Mapping[str, bytes]
) -> Row:
    ranked = [
        RankedCard(
            _card(documents[result.index], pictures), result.score, documents[result.index].name in ranking.expected
        )
        for result in response.results
    ]
    return Row(ranking.title, _card(ranking.query, pictures), ranked, len(documents))


def _card(piece: Piece, pictures: Mapping[str, bytes]) -> Card:
    picture = pictures[piece.picture] if piece.picture is not None else None
    return Card(piece.picture or "", picture, piece.text, piece.gloss)


def _subtitle(rows: Sequence[Row]) -> str:
    return f"{len(rows)} rankings; below each document its rank and score; green: what a person would put first"


if __name__ == "__main__":
    sys.exit(main())

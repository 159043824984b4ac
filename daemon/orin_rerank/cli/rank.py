"""`orin-rerank rank`: asks the daemon to rank texts and pictures."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.options import AddressOption, JsonOption, SocketOption  # noqa: TC001 - typer reads annotations at run time
from orin_rerank.errors import OrinRerankError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from orin_rerank.cli.inputs import Item
    from orin_rerank.v1 import rerank_pb2

__all__ = ["Items", "rank", "ranking_as_dict", "ranking_table"]

_NAME_CELLS = 60
_DOCUMENT_PLACE = re.compile(r"^documents\[(\d+)\]")


def rank(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A text or a picture.")],
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="DOCUMENT", help="Texts and pictures.", show_default=False)
    ] = None,
    *,
    query_image: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A picture that goes with the text of QUERY.", show_default=False),
    ] = None,
    documents_file: Annotated[
        Path | None,
        typer.Option("--documents", metavar="FILE", help="More documents, as JSON lines; - is standard input."),
    ] = None,
    instruction: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What relevance means here, in English.", show_default=False)
    ] = None,
    top: Annotated[int | None, typer.Option(metavar="N", min=1, help="Show only the best N.")] = None,
    max_query_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Cut the query's text after N tokens.")
    ] = None,
    max_document_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Cut each document's text after N tokens.")
    ] = None,
    no_truncate: Annotated[bool, typer.Option("--no-truncate", help="Refuse what is too long; do not cut it.")] = False,
    json_output: JsonOption = False,
    socket: SocketOption = None,
    address: AddressOption = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.001, help="How long to wait.")] = 60.0,
) -> int:
    """Rank texts and pictures by their relevance to a query.

    An argument that ends in .png, .jpg, .jpeg, .webp, .gif or .bmp is a picture; anything else is text. @FILE takes
    what a file holds (@- is standard input), and text:WORDS is text whatever it looks like.

    For example:

        orin-rerank rank "red fire engine" pictures/*.webp
        orin-rerank rank dog.png "a cat asleep" "a dog at play" --json
        orin-rerank rank @question.txt --documents passages.jsonl --top 5
        orin-rerank rank "the same in blue" --query-image shirt.png shirts/*.png

    A line of --documents is a string, or a list of parts in the order in which the model reads them, or an object
    that adds a name: {"name": "page 3", "content": [{"image": "page3.webp"}, {"text": "Figure 3"}]}. Paths of
    pictures start at the file's folder.

    --json writes {"model", "precision", "seconds", "query", "results", "usage"}. Results are best first: {"rank",
    "index", "document", "score", "margin", "tokens", "truncated_tokens"}. "index" counts from 0 in the order given,
    "score" is 0 to 1, and "margin" is the same before it is squashed.
    """
    from orin_rerank.cli.address import target_of
    from orin_rerank.cli.output import console, print_json

    target = target_of(socket, address)
    items = _gather(query, documents or [], query_image, documents_file)
    request = _request(
        items,
        instruction=instruction,
        top=top,
        max_query_tokens=max_query_tokens,
        max_document_tokens=max_document_tokens,
        truncate=not no_truncate,
    )
    from orin_rerank.cli.client import DaemonClient

    started = time.perf_counter()
    with DaemonClient(target, timeout_s=timeout) as client:
        try:
            response = client.rerank(request)
        except OrinRerankError as error:
            raise _named(error, items) from error
    seconds = time.perf_counter() - started
    if json_output:
        print_json(ranking_as_dict(response, items, seconds))
    else:
        out = console()
        out.print(ranking_table(response, items))
        out.print(_footer(response, len(items.documents), seconds), style="dim")
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class Items:
    """What is ranked.

    Attributes:
        query: The query.
        documents: The documents in the caller's order.
    """

    query: Item
    documents: Sequence[Item]


def ranking_table(response: rerank_pb2.RerankResponse, items: Items) -> Table:
    """The results as a table, best first."""
    from rich.table import Table
    from rich.text import Text

    from orin_rerank.cli.output import score_bar, snippet

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("margin", justify="right", no_wrap=True)
    # The one column that gives way on a narrow terminal; its cells are cut rather than broken into lines.
    table.add_column("document")
    table.add_column("tokens", justify="right", no_wrap=True)
    for rank_, result in enumerate(response.results, start=1):
        tokens = str(result.tokens) + (f" (-{result.truncated_tokens})" if result.truncated else "")
        table.add_row(
            str(rank_),
            f"{result.score:.3f}",
            score_bar(result.score),
            f"{result.margin:+.2f}",
            Text(snippet(items.documents[result.index].name, _NAME_CELLS), no_wrap=True, overflow="ellipsis"),
            Text(tokens, style="yellow" if result.truncated else ""),
        )
    return table


def ranking_as_dict(response: rerank_pb2.RerankResponse, items: Items, seconds: float) -> dict[str, object]:
    """The results as `--json` writes them; `rank --help` documents this form."""
    usage = response.usage
    return {
        "model": response.model,
        "precision": response.precision,
        "seconds": round(seconds, 6),
        "query": items.query.name,
        "results": [
            {
                "rank": rank_,
                "index": result.index,
                "document": items.documents[result.index].name,
                "score": _float32(result.score),
                "margin": _float32(result.margin),
                "tokens": result.tokens,
                "truncated_tokens": result.truncated_tokens,
            }
            for rank_, result in enumerate(response.results, start=1)
        ],
        "usage": {
            "query_tokens": usage.query_tokens,
            "query_truncated_tokens": usage.query_truncated_tokens,
            "document_tokens": usage.document_tokens,
            "images": usage.images,
            "images_cached": usage.images_cached,
        },
    }


def _gather(query: str, documents: Sequence[str], query_image: Path | None, documents_file: Path | None) -> Items:
    """Reads everything that the arguments name."""
    from orin_rerank.cli.inputs import Item, image_file, item_of, items_of_lines

    if documents_file is not None and str(documents_file) == "-" and "@-" in (query, *documents):
        raise SettingsError("standard input can be read only once", item="--documents -, @-")
    question = item_of(query, "QUERY")
    if query_image is not None:
        picture = image_file(query_image)
        # The image first: the order that the model was trained with.
        question = Item(f"{picture.name} + {question.name}", (*picture.parts, *question.parts))
    items = [item_of(document, f"DOCUMENT {number}") for number, document in enumerate(documents, start=1)]
    if documents_file is not None:
        items.extend(items_of_lines(documents_file))
    if not items:
        raise SettingsError("name at least one, or give --documents FILE", item="DOCUMENT")
    return Items(question, items)


def _request(
    items: Items,
    *,
    instruction: str | None,
    top: int | None,
    max_query_tokens: int | None,
    max_document_tokens: int | None,
    truncate: bool,
) -> rerank_pb2.RerankRequest:
    from orin_rerank.cli.inputs import to_proto
    from orin_rerank.v1 import rerank_pb2

    return rerank_pb2.RerankRequest(
        query=to_proto(items.query.parts),
        documents=[to_proto(item.parts) for item in items.documents],
        instruction=instruction,
        top_n=top,
        max_query_tokens=max_query_tokens,
        max_document_tokens=max_document_tokens,
        truncation=rerank_pb2.TRUNCATION_TAIL if truncate else rerank_pb2.TRUNCATION_NONE,
    )


def _named(error: OrinRerankError, items: Items) -> OrinRerankError:
    """Puts the caller's own name for a document next to the request's `documents[3]`."""
    place = _DOCUMENT_PLACE.match(error.item or "")
    if place is not None and int(place[1]) < len(items.documents):
        error.item = f"{error.item} ({items.documents[int(place[1])].name[:_NAME_CELLS]})"
    return error


def _footer(response: rerank_pb2.RerankResponse, documents: int, seconds: float) -> str:
    from orin_rerank.cli.output import counted

    usage = response.usage
    pictures = f", {counted(usage.images, 'picture')} ({usage.images_cached} cached)" if usage.images else ""
    cut = f" ({usage.query_truncated_tokens} cut)" if usage.query_truncated_tokens else ""
    return (
        f"{counted(documents, 'document')} in {seconds:.2f} s; {response.model}, {response.precision}; "
        f"query {counted(usage.query_tokens, 'token')}{cut}, documents {usage.document_tokens}{pictures}"
    )


def _float32(value: float) -> float:
    """A float32 as the shortest decimal that gives it back: 0.9, not 0.8999999761581421."""
    return float(f"{value:.9g}")

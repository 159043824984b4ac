"""`orin-rerank status`: what the daemon is doing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.options import AddressOption, JsonOption, SocketOption  # noqa: TC001 - typer reads annotations at run time

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.table import Table

    from orin_rerank.v1 import rerank_pb2

__all__ = ["status", "status_as_dict", "status_table"]

_EXIT_CODES: Final = {
    "serving": ExitCode.OK,
    "starting": ExitCode.OVERLOADED,
    "draining": ExitCode.UNAVAILABLE,
    "failed": ExitCode.INTERNAL,
}
_STYLES: Final = {"serving": "green", "starting": "yellow", "draining": "yellow", "failed": "red"}


def status(
    *,
    json_output: JsonOption = False,
    socket: SocketOption = None,
    address: AddressOption = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.001, help="How long to wait.")] = 5.0,
) -> int:
    """Say what the daemon is doing and with what model.

    The exit code tells the state: 0 serving, 75 starting (ask again), 69 draining, 70 failed, 68 no daemon answers.

    For example:

        orin-rerank status
        until orin-rerank status >/dev/null; do sleep 1; done
        orin-rerank status --json | jq .counters.documents

    --json writes {"state", "detail", "version", "uptime_seconds", "model", "queue", "pool", "counters"}, with the
    names that GetStatus has in rerank.proto; "model" and "pool" are null until the model is loaded.
    """
    from orin_rerank.cli.address import target_of
    from orin_rerank.cli.client import DaemonClient
    from orin_rerank.cli.output import console, print_json

    with DaemonClient(target_of(socket, address), timeout_s=timeout) as client:
        response = client.status()
        if json_output:
            print_json(status_as_dict(response))
        else:
            console().print(status_table(response, client.target))
    return _EXIT_CODES.get(state_name(response), ExitCode.INTERNAL)


def state_name(response: rerank_pb2.GetStatusResponse) -> str:
    """The state's name in lower case, such as `serving`."""
    from orin_rerank.v1 import rerank_pb2

    return rerank_pb2.State.Name(response.state).removeprefix("STATE_").lower()


def status_as_dict(response: rerank_pb2.GetStatusResponse) -> dict[str, object]:
    """The status as `--json` writes it, with numbers as numbers and nothing left out."""
    counters = response.counters
    return {
        "state": state_name(response),
        "detail": response.detail,
        "version": response.version,
        "uptime_seconds": round(response.uptime_seconds, 3),
        "model": _fields(response.model) if response.HasField("model") else None,
        "queue": _fields(response.queue),
        "pool": _fields(response.pool) if response.HasField("pool") else None,
        "counters": {
            field.name: dict(counters.errors) if field.name == "errors" else getattr(counters, field.name)
            for field in counters.DESCRIPTOR.fields
        },
    }


def _fields(message: Message) -> dict[str, object]:
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def status_table(response: rerank_pb2.GetStatusResponse, target: str) -> Table:
    """The status for a person."""
    from rich.table import Table
    from rich.text import Text

    from orin_rerank.cli.output import counted, snippet

    state = state_name(response)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("state", Text(state, style=_STYLES.get(state, "red")))
    if response.detail:
        table.add_row("detail", Text(snippet(response.detail, 500)))
    if response.HasField("model"):
        model = response.model
        made_from = f", made from {model.source_digest[:12]}" if model.source_digest else ""
        table.add_row("model", f"{model.name} ({model.bundle_digest[:12]}{made_from})")
        why = f" ({snippet(model.engine_reason, 500)})" if model.engine_reason else ""
        table.add_row("engine", Text(f"{model.engine}, {model.precision}{why}"))
        if model.precision_reason:
            table.add_row("precision", Text(snippet(model.precision_reason, 500)))
        table.add_row("reads", f"{'text and pictures' if model.images else 'text'}, up to {model.max_tokens} tokens")
        table.add_row("pack", f"{model.token_budget} tokens")
    queue, counters = response.queue, response.counters
    table.add_row(
        "queue", f"{counted(queue.requests, 'request')}, {queue.documents} of {queue.max_documents} documents"
    )
    if response.HasField("pool"):
        pool = response.pool
        table.add_row(
            "buffers",
            f"{pool.used} of {pool.slots} in use, at most {pool.high_water} so far; {pool.total_bytes / 1e6:,.1f} MB; "
            f"{counted(pool.waits, 'wait')}",
        )
    table.add_row("served", f"{counted(counters.requests, 'request')}, {counted(counters.documents, 'document')}")
    table.add_row("packs", f"{counters.packs}, of {counters.packed_tokens} tokens together")
    table.add_row("pictures", f"{counters.images_encoded} encoded, {counters.images_cached} from the cache")
    errors = ", ".join(f"{count} {name}" for name, count in sorted(counters.errors.items()))
    table.add_row("errors", errors or "none")
    table.add_row("daemon", f"{response.version} at {target}, up {_duration(response.uptime_seconds)}")
    return table


def _duration(seconds: float) -> str:
    """A span of time in its two largest units: `3 d 4 h`, `12 s`."""
    whole = int(seconds)
    units = (("d", whole // 86400), ("h", whole // 3600 % 24), ("min", whole // 60 % 60), ("s", whole % 60))
    parts = [f"{count} {unit}" for unit, count in units if count]
    return " ".join(parts[:2]) or "0 s"

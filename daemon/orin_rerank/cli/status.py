"""`orin-rerank status`: what the daemon is doing."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.options import AddressOption, JsonOption, SocketOption  # noqa: TC001 - typer reads annotations at run time

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.table import Table

    from orin_rerank.cli.client import DaemonClient
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
    watch: Annotated[
        bool, typer.Option("--watch", help="Say what it is at whenever that changes, until it ends or Ctrl-C.")
    ] = False,
) -> int:
    """Say what the daemon is doing and with what model.

    The exit code tells the state: 0 serving, 75 starting (ask again), 69 draining, 70 failed, 68 no daemon answers.

    For example:

        orin-rerank status
        orin-rerank status --watch
        until orin-rerank status >/dev/null; do sleep 1; done
        orin-rerank status --json | jq .counters.documents

    --json writes {"state", "detail", "version", "uptime_seconds", "activity", "problems", "model", "queue", "pool",
    "counters"}, with the names that GetStatus has in rerank.proto; "model" and "pool" are null until the model is
    loaded. With --watch it writes lines of {"state", "activity", "problems"}.
    """
    from orin_rerank.cli.address import target_of
    from orin_rerank.cli.client import DaemonClient
    from orin_rerank.cli.output import console, print_json

    with DaemonClient(target_of(socket, address), timeout_s=timeout) as client:
        if watch:
            return follow(client, json_output=json_output)
        response = client.status()
        if json_output:
            print_json(status_as_dict(response))
        else:
            console().print(status_table(response, client.target))
    return _EXIT_CODES.get(state_name(response), ExitCode.INTERNAL)


def state_name(response: rerank_pb2.GetStatusResponse | rerank_pb2.WatchStatusResponse) -> str:
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
        "activity": activity_as_dict(response.activity),
        "problems": list(response.problems),
        "model": _fields(response.model) if response.HasField("model") else None,
        "queue": _fields(response.queue),
        "pool": _fields(response.pool) if response.HasField("pool") else None,
        "counters": {
            field.name: dict(counters.errors) if field.name == "errors" else getattr(counters, field.name)
            for field in counters.DESCRIPTOR.fields
        },
    }


def activity_as_dict(activity: rerank_pb2.Activity) -> dict[str, object]:
    """What the daemon is at, as `--json` writes it; what is not known is null."""
    known = {
        name: round(getattr(activity, name), 3) for name in ("fraction", "seconds_left") if activity.HasField(name)
    }
    return {
        "step": activity.step,
        "detail": activity.detail,
        "fraction": known.get("fraction"),
        "seconds_left": known.get("seconds_left"),
        "reason": activity.reason,
        "since_seconds": round(activity.since_seconds, 3),
    }


def follow(client: DaemonClient, *, json_output: bool) -> int:
    """Writes a line for whatever the daemon is at, until it ends.

    Returns:
        The exit code of the state that it was in last.
    """
    from orin_rerank.cli.output import console, snippet

    code: int = ExitCode.UNREACHABLE
    out, problems, reason = console(), list[str](), ""
    for update in client.watch():
        state = state_name(update)
        code = _EXIT_CODES.get(state, ExitCode.INTERNAL)
        activity = update.activity
        if json_output:
            value = {"state": state, "activity": activity_as_dict(activity), "problems": list(update.problems)}
            sys.stdout.write(f"{json.dumps(value, ensure_ascii=False)}\n")
            sys.stdout.flush()
        else:
            what = f"{_step(activity)}: {activity.detail}" if activity.step else activity.detail
            out.print(f"{state}: {snippet(what, 300)}", style=_STYLES.get(state, "red"), markup=False, soft_wrap=True)
            if activity.reason and activity.reason != reason:
                out.print(f"  because {snippet(activity.reason, 300)}", style="dim", markup=False, soft_wrap=True)
            reason = activity.reason
            for problem in update.problems if list(update.problems) != problems else ():
                out.print(f"  {snippet(problem, 300)}", style="yellow", markup=False, soft_wrap=True)
            problems = list(update.problems)
    return code


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
    activity = response.activity
    if response.detail:
        table.add_row("detail", Text(snippet(response.detail, 500)))
    if activity.step:
        table.add_row("step", Text(_step(activity)))
        if activity.reason:
            table.add_row("because", Text(snippet(activity.reason, 500)))
    for problem in response.problems:
        table.add_row("problem", Text(snippet(problem, 500), style="yellow"))
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
    if queue.max_picture_bytes:
        held, most = queue.picture_bytes / 1e6, queue.max_picture_bytes / 1e6
        table.add_row("waiting", f"{held:,.1f} of at most {most:,.1f} MB of decoded pictures")
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


def _step(activity: rerank_pb2.Activity) -> str:
    """The step, how far it is, and for how long it has been going on."""
    share = f", {activity.fraction:.0%}" if activity.HasField("fraction") else ""
    left = f", about {_duration(activity.seconds_left)} left" if activity.HasField("seconds_left") else ""
    return f"{activity.step}{share}{left}, for {_duration(activity.since_seconds)}"


def _duration(seconds: float) -> str:
    """A span of time in its two largest units: `3 d 4 h`, `12 s`."""
    whole = int(seconds)
    units = (("d", whole // 86400), ("h", whole // 3600 % 24), ("min", whole // 60 % 60), ("s", whole % 60))
    parts = [f"{count} {unit}" for unit, count in units if count]
    return " ".join(parts[:2]) or "0 s"

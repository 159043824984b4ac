"""The appliance on a test machine: a board put there, settings, what the daemon says, an app that ranks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from appliance.machine import wait_until
from fakes.board import make_board
from lifecycle.calibration_sets import write_part
from orin_rerank.board.paths import ROOT_VARIABLE, BoardPaths

if TYPE_CHECKING:
    from appliance.machine import Machine
    from fakes.board import BoardSpec

__all__ = [
    "AGAIN",
    "APP",
    "BOARD",
    "BOARD_ROOT",
    "DAEMON",
    "STRANGER",
    "UNITS",
    "board_calls",
    "clocks_locked",
    "drop_in",
    "main_pid",
    "mode_of",
    "outcome_of",
    "put_board",
    "rank",
    "settings",
    "small_sets",
    "state_of",
    "wait_for_state",
]

DAEMON: Final = "orin-rerank.service"
BOARD: Final = "orin-rerank-board.service"
AGAIN: Final = "orin-rerank-board-again.service"
UNITS: Final = (DAEMON, BOARD, AGAIN, "orin-rerank-board.path")

APP: Final = "app"
"""A user in the group orin-rerank."""
STRANGER: Final = "stranger"
"""One who is not."""

BOARD_ROOT: Final = "/var/fake-board"
"""Where the tree that stands for a board lies: neither /sys nor /proc of a container can be put in its place."""

_NO_GPU: Final = "ORIN_RERANK__FIRST_BOOT__GPU_WAIT_S=0"

_SETS: Final = Path(__file__).resolve().parents[2] / "calibration_data"

_SERVING_S: Final = 240.0
"""Seconds on an idle machine; this is for one that has other things to do."""


def put_board(machine: Machine, spec: BoardSpec) -> BoardPaths:
    """Puts a board into a machine that is off, and tells the units where it is."""
    paths = make_board(machine.root / BOARD_ROOT.lstrip("/"), spec)
    # What is not the board's is the machine's own, also where doctor looks below the board's root.
    services = ("run/orin-rerank", "run/orin-rerank-board", "var/lib/orin-rerank-board")
    for place in (*services, "etc/systemd", "lib/systemd", "usr/bin/journalctl"):
        link = paths.root / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"/{place}")
    for program in ("usr/sbin/nvpmodel", "usr/bin/jetson_clocks"):  # what the unit's conditions look for
        (machine.root / program).symlink_to(f"{BOARD_ROOT}/{program}")
    # No container has a Jetson's GPU, so none is waited for.
    drop_in(machine, DAEMON, "board", f"[Service]\nEnvironment={ROOT_VARIABLE}={BOARD_ROOT} {_NO_GPU}\n")
    for unit in (BOARD, AGAIN):
        where = f"[Service]\nEnvironment={ROOT_VARIABLE}={BOARD_ROOT}\nReadWritePaths={BOARD_ROOT}\n"
        drop_in(machine, unit, "board", where)
    return paths


def drop_in(machine: Machine, unit: str, name: str, text: str) -> None:
    """Adds to a unit, as an administrator does."""
    machine.write(f"/etc/systemd/system/{unit}.d/{name}.conf", text)


def settings(machine: Machine, text: str) -> None:
    """Writes the settings file."""
    machine.write("/etc/orin-rerank/config.toml", text)


def small_sets(machine: Machine) -> None:
    """Gives the daemon sets to calibrate and judge with that take it seconds rather than minutes."""
    names = ("calibration", "evaluation")
    for name in names:
        write_part(machine.root / "srv" / name, _SETS / name, 4)
    where = " ".join(f"ORIN_RERANK__FIRST_BOOT__{name.upper()}=/srv/{name}" for name in names)
    drop_in(machine, DAEMON, "sets", f"[Service]\nEnvironment={where}\n")


def state_of(machine: Machine) -> dict[str, Any]:
    """What `orin-rerank status --json` says; empty while no daemon answers."""
    done = machine.try_run("orin-rerank", "status", "--json")
    status: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    return status


def wait_for_state(machine: Machine, state: str = "serving", timeout_s: float = _SERVING_S) -> dict[str, Any]:
    """Waits until the daemon is in a state; returns what it says."""
    status: dict[str, Any] = {}

    def reached() -> bool:
        status.clear()
        status.update(state_of(machine))
        assert status or machine.property_of(DAEMON, "ActiveState") != "failed", "the daemon is given up"
        return status.get("state") == state

    try:
        wait_until(reached, timeout_s, f"the daemon is not {state}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {status}\n{machine.journal(DAEMON)}\n{machine.journal(BOARD)}") from None
    return status


def rank(machine: Machine, user: str) -> subprocess.CompletedProcess[str]:
    """Ranks three texts over the socket."""
    documents = ("text:a red lorry with a ladder", "text:a dog", "text:the moon at night")
    return machine.as_user(user, "orin-rerank", "rank", "fire engine", *documents, "--json")


def main_pid(machine: Machine) -> int:
    """The daemon's process number in the machine; 0 while there is none."""
    return int(machine.property_of(DAEMON, "MainPID"))


def board_calls(paths: BoardPaths) -> list[str]:
    """Every call of nvpmodel and jetson_clocks so far."""
    return (paths.text("/fake/calls") or "").splitlines()


def mode_of(paths: BoardPaths) -> str:
    """The power mode that the board is in, as nvpmodel notes it, such as `0002`."""
    return (paths.text("/var/lib/nvpmodel/status") or "").split()[0].removeprefix("pmode:")


def clocks_locked(paths: BoardPaths) -> bool:
    """Whether the GPU cannot clock down."""
    gpu = "/sys/class/devfreq/17000000.gpu"
    return paths.number(f"{gpu}/min_freq") == paths.number(f"{gpu}/max_freq")


def outcome_of(machine: Machine) -> dict[str, Any]:
    """What the root service noted last."""
    outcome: dict[str, Any] = json.loads(machine.read("/run/orin-rerank-board/outcome.json"))
    return outcome

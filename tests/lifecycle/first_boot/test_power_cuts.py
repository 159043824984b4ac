"""The power goes, or the disk fails, at any moment of a first boot: the next start serves, or says what is the matter.

The moments are counted by a shim in front of the C library (bad_disk.c), so a step that is added is covered as it is.
The power goes about every other time that the journal is written: before it is, or after. Of all other moments so many
are tried as FIRST_BOOT_CUTS says (4); with 0 it is really every one, for every fault: `make test-faults`, which takes
hours.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

import pytest

from orin_rerank.lifecycle.first_boot.journal import JOURNAL_FILE

if TYPE_CHECKING:
    from lifecycle.first_boot.boots import Boots, Machine

CUTS = int(os.environ.get("FIRST_BOOT_CUTS", "4"))

KILLED, POWER_CUT = 0, -1
"""What the shim takes for an error: a process that is killed, and one whose unsynced writes are lost besides."""

_log = logging.getLogger(__name__)


@pytest.fixture(params=["pc", "jetson"])
def machine(boots: Boots, request: pytest.FixtureRequest) -> Machine:
    return boots.machines[request.param]


def some(machine: Machine, most: int) -> list[int]:
    """Numbers of changes, evenly spread; all of them where every one is asked for."""
    return list(range(1, len(machine.changes) + 1)[:: max(len(machine.changes) // most, 1) if CUTS else 1])


def about_notes(machine: Machine) -> list[int]:
    """Moments just before every fourth note in the journal is there, and just after as many others."""
    noted = [n for n, change in enumerate(machine.changes, 1) if change.endswith(f"rename /{JOURNAL_FILE}")]
    assert len(noted) >= 8
    return [*noted[::4], *(n + 1 for n in noted[2:-1:4])]


@pytest.mark.parametrize("error", [KILLED, POWER_CUT], ids=["killed", "power"])
def test_after_a_power_cut_the_next_start_serves(boots: Boots, machine: Machine, error: int) -> None:
    moments = some(machine, CUTS if error == POWER_CUT else 1)  # whoever survives the first survives the second
    if (machine.name, error) == ("pc", POWER_CUT):
        moments = sorted({*about_notes(machine), *moments})
    wrong = []
    for at in moments:
        name = f"cut-{machine.name}-{error}-{at}"
        cut = boots.boot(machine, name, at, error)
        after = boots.boot(machine, name)
        if not cut.get("killed") or not machine.is_best(after):
            wrong.append((machine.changes[at - 1], cut, after))
        boots.forget(name)
    _log.info("%s: cut at %d of %d changes", machine.name, len(moments), len(machine.changes))
    assert wrong == []


@pytest.mark.parametrize(
    ("error", "once"),
    [(errno.ENOSPC, False), (errno.EIO, False), (errno.EROFS, False), (errno.ENOSPC, True), (errno.EIO, True)],
    ids=["ENOSPC", "EIO", "EROFS", "ENOSPC-once", "EIO-once"],
)
def test_where_the_disk_fails_something_is_served_and_said(
    boots: Boots, machine: Machine, error: int, once: bool
) -> None:
    """Every write fails, or one; then the disk is well again, and in the end nothing is to be seen of it."""
    moments = some(machine, 1 if once or machine.name == "jetson" else 3)
    wrong = []
    for at in moments:
        name = f"bad-{machine.name}-{error}-{once}-{at}"
        answers = [boots.boot(machine, name, at, error, once=once)]
        told = machine.is_best(answers[0]) or any(os.strerror(error) in said for said in answers[0]["problems"])
        if CUTS:  # the same at whatever moment it failed, and it takes time
            answers.append(boots.boot(machine, name))
            told = told and (machine.is_best(answers[1]) or "tries it again" in answers[1]["problems"][0])
        if not machine.is_best(answers[-1]) or not CUTS:
            answers.append(boots.boot(machine, name, later_s=3600.0))
        if not told or not machine.is_best(answers[-1]):
            wrong.append((machine.changes[at - 1], answers))
        boots.forget(name)
    _log.info("%s: failed at %d of %d changes", machine.name, len(moments), len(machine.changes))
    assert wrong == []

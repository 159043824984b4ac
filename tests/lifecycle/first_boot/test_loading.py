"""Loading that ends the process, in real processes that are killed: tried again later, then left out."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.first_boot.conftest import Clock, Told
from orin_rerank.errors import UnavailableError
from orin_rerank.lifecycle.first_boot.journal import Journal, Outcome
from orin_rerank.lifecycle.first_boot.loading import wait
from orin_rerank.lifecycle.first_boot.progress import Step
from orin_rerank.lifecycle.rungs import Rung

if TYPE_CHECKING:
    from lifecycle.first_boot.boots import Boots, Machine
    from orin_rerank.lifecycle.first_boot.place import Place
    from orin_rerank.lifecycle.first_boot.progress import Progress

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "orin-rerank.service"
GPU = (Rung.TENSORRT_INT8.value, Rung.TENSORRT_FULL.value)
ENDED = "the process ended while it was loaded"


class Box:
    """A machine that is started again and again, with its own time."""

    def __init__(self, boots: Boots, machine: Machine, name: str) -> None:
        self.machine = machine
        self.now_s = 0.0
        self._boots = boots
        self._name = name
        # What was prepared before, so that it is loading alone that is done harm.
        self._like = f"undisturbed-{machine.name}"

    def start(self, **harm: Any) -> dict[str, Any]:
        answer = self._boots.boot(self.machine, self._name, like=self._like, later_s=self.now_s, **harm)
        assert "bug" not in answer, answer["bug"]
        self.now_s += answer["slept_s"]
        return answer

    def killed(self, **harm: Any) -> float:
        """Starts it, and it is killed; returns for how long it waited before."""
        answer = self.start(**harm)
        assert answer.get("killed"), answer
        return round(answer["slept_s"], -1)

    @property
    def journal(self) -> dict[str, int]:
        """Rungs that have an entry, and how often each ended the process."""
        entries = Journal(self._boots.state(self._name)).entries
        return {rung.value: entry.failures for rung, entry in entries.items() if isinstance(rung, Rung)}


@pytest.fixture
def box(boots: Boots, request: pytest.FixtureRequest) -> Box:
    name, machine = request.node.name, boots.machines[getattr(request, "param", "pc")]
    return Box(boots, machine, name)


def test_int8_that_kills_is_tried_again_then_left_out_and_comes_back(box: Box) -> None:
    deadly = [Rung.PROCESSOR_INT8.value]
    assert [box.killed(deadly=deadly) for _ in range(3)] == [0, 60, 300]
    assert box.journal == {Rung.PROCESSOR_INT8.value: 2}
    served = box.start(deadly=deadly)
    assert (served["served"], served["slept_s"]) == ("fp32 by onnxruntime-cpu", 0)
    (problem,) = served["problems"]
    assert problem.startswith(f"load: the processor (int8) is left out: {ENDED}")
    assert "(3 times in a row); a start 30 min after that, or later, tries it again" in problem
    box.now_s += 1700
    assert box.start(deadly=deadly)["served"] == "fp32 by onnxruntime-cpu"
    box.now_s += 200
    assert box.killed(deadly=deadly) == 0
    assert "a start 2 h after that, or later," in box.start(deadly=deadly)["problems"][0]
    box.now_s += 7300
    assert box.machine.is_best(box.start())
    assert box.journal == {}, "what went well is forgotten"


@pytest.mark.parametrize("box", ["jetson"], indirect=True)
def test_where_the_gpu_kills_the_processor_serves(box: Box) -> None:
    waits = [box.killed(deadly=GPU) for _ in range(6)]
    assert waits == [0, 60, 300, 0, 60, 300]
    served = box.start(deadly=GPU)
    assert served["served"] == "int8 by onnxruntime-cpu"
    (problem,) = served["problems"]
    assert "TensorRT (int8-fp16) is left out: the process" in problem
    assert "TensorRT (fp16) is left out: the process" in problem
    box.now_s += 7300
    assert box.machine.is_best(box.start())


@pytest.mark.parametrize("box", ["jetson"], indirect=True)
def test_a_gpu_that_is_lost_each_time_is_left_out_too(box: Box) -> None:
    answers = [box.start(lost=True) for _ in range(7)]
    assert [round(answer["slept_s"], -1) for answer in answers] == [0, 60, 300, 0, 60, 300, 0]
    assert all(answer["error"].startswith("DeviceLostError") for answer in answers[:6])
    assert answers[6]["served"] == "int8 by onnxruntime-cpu"
    assert "illegal memory access" in answers[6]["problems"][0]


def test_people_are_told_while_it_waits(box: Box) -> None:
    box.killed(deadly=[Rung.PROCESSOR_INT8.value])
    (said,) = box.start()["waits"]
    assert said.startswith(f"what ended the process is tried again: the processor (int8): {ENDED}")
    assert said.endswith("(once); `orin-rerank prepare --again` tries it at once")


def test_a_power_cut_is_nobodys_fault(box: Box) -> None:
    """It is taken up at once; though what takes the power each time is left out, too."""
    deadly = [Rung.PROCESSOR_INT8.value]
    for number in range(3):
        assert box.killed(deadly=deadly, boot_id=f"boot-{number}") == 0
    served = box.start(deadly=deadly, boot_id="boot-3")
    assert served["served"] == "fp32 by onnxruntime-cpu"
    assert "the power went, or the machine stopped, while it was loaded (3 times" in served["problems"][0]


def test_a_clock_that_goes_back_at_each_boot_does_not_switch_the_ladder_off(box: Box) -> None:
    """A board without a battery begins each boot at the same time; what takes its power must not be tried at each."""
    deadly = [Rung.PROCESSOR_INT8.value]
    for number in range(3):
        assert box.killed(deadly=deadly, boot_id=f"boot-{number}", up_s=20.0) == 0
        box.now_s -= 30
    for number in range(3, 5):
        assert box.start(deadly=deadly, boot_id=f"boot-{number}", up_s=20.0)["served"] == "fp32 by onnxruntime-cpu"
        box.now_s -= 30
    assert box.killed(deadly=deadly, boot_id="boot-5", up_s=1900.0) == 0, "after half an hour it is tried again"


def test_where_everything_kills_it_waits_and_comes_back_by_itself(box: Box) -> None:
    rungs = [rung.value for rung in (Rung.PROCESSOR_INT8, Rung.PROCESSOR_FULL)]
    for _ in range(6):
        box.killed(deadly=rungs)
    after = box.start()
    assert box.machine.is_best(after), "after the wait, since what killed it has gone"
    assert 0 < after["slept_s"] <= 1800 + 1800
    assert any("nothing can be served" in said and "left out" in said for said in after["waits"])


@pytest.mark.parametrize("box", ["jetson"], indirect=True)
def test_systemd_never_gives_up_what_the_journal_limits(box: Box) -> None:
    """At the worst all that may kill does, as fast as can be; systemd starts it so often as its limit has it."""
    unit = UNIT.read_text()
    interval = re.search(r"^StartLimitIntervalSec=(\d+)(h?)$", unit, re.MULTILINE)
    burst = re.search(r"^StartLimitBurst=(\d+)$", unit, re.MULTILINE)
    assert interval is not None
    assert burst is not None
    interval_s = int(interval[1]) * (3600 if interval[2] else 1)
    rungs = [rung.value for rung in Rung]
    starts = 0
    while box.now_s < interval_s:
        box.killed(deadly=rungs)
        starts += 1
    # Before it comes to loading, each of three steps may have ended the process five times.
    assert starts + 3 * 5 < int(burst[1])
    assert starts > 12


def test_a_person_who_asks_for_it_ends_the_wait(place: Place, clock: Clock) -> None:
    """Another daemon that writes into the same journal does not."""

    class Asks(Told):
        def __call__(self, progress: Progress) -> None:
            super().__call__(progress)
            if len(self.heard) < 3:
                Journal(place.state, clock).found(Step.LOAD, {}, Outcome.FAILED, f"failed {len(self.heard)} times")
            else:
                Journal(place.state, clock).forget()

    told = Asks()
    wait(place, told, math.inf, "nothing helps")
    assert [progress.reason for progress in told.heard] == ["nothing helps"] * 3
    told.stopping = True
    with pytest.raises(UnavailableError):
        wait(place, told, 60, "nothing helps")

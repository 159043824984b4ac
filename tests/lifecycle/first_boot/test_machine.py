"""The steps, with real calibrations of a tiny model: what is done, what is left out, what is tried again and when."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from lifecycle.first_boot.conftest import Clock, Told, changed
from lifecycle.int8_bundles import seal
from orin_rerank import __version__
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.host_memory import HostMemory
from orin_rerank.engines.settings import DeviceChoice, EngineSettings, PrecisionChoice
from orin_rerank.errors import BundleError, CalibrationError, NoSpaceError, UnavailableError
from orin_rerank.lifecycle.accelerators import Accelerators
from orin_rerank.lifecycle.first_boot.journal import JOURNAL_FILE, Journal, Outcome
from orin_rerank.lifecycle.first_boot.machine import Prepared, prepare, prepare_and_load
from orin_rerank.lifecycle.first_boot.making import Make
from orin_rerank.lifecycle.first_boot.preflight import check_disk
from orin_rerank.lifecycle.first_boot.progress import Step
from orin_rerank.lifecycle.rungs import Rung
from orin_rerank.quantization.gate import GateThresholds

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.lifecycle.first_boot.machine import StepResult
    from orin_rerank.lifecycle.first_boot.place import Place


def of(prepared: Prepared, step: Step) -> StepResult:
    return next(result for result in prepared.steps if result.step is step)


def journal(place: Place) -> dict[str, dict[str, object]]:
    steps: dict[str, dict[str, object]] = json.loads((place.state / JOURNAL_FILE).read_text())["steps"]
    return steps


def served(place: Place) -> str:
    """What is served now."""
    model = prepare_and_load(place, Told(), lambda _: None)
    precision = model.info.precision
    model.close()
    return precision


def test_a_pc_calibrates_once_and_serves_int8(place: Place) -> None:
    told = Told()
    prepared = prepare(place, told)
    assert prepared.problems == ()
    assert of(prepared, Step.CALIBRATE).text.startswith("INT8 passed its gate")
    assert told.steps == ["board", "memory", "power-mode", "clocks", "gpu", "calibrate", "build-int8", "build-full"]
    stages = [progress for progress in told.heard if progress.step is Step.CALIBRATE]
    assert {progress.reason for progress in stages[1:]} == {"no INT8 engine is installed for this bundle"}
    assert any(progress.fraction == 1.0 for progress in stages)
    assert served(place) == "int8"
    assert journal(place)["calibrate"]["outcome"] == journal(place)["load"]["outcome"] == "done"
    before = (place.state / JOURNAL_FILE).stat().st_mtime_ns
    again = prepare(place, told)
    assert of(again, Step.CALIBRATE).text == "an INT8 engine is installed"
    assert (place.state / JOURNAL_FILE).stat().st_mtime_ns == before


def test_where_full_precision_is_asked_for_nothing_is_made(place: Place) -> None:
    place = changed(place, engine=EngineSettings(precision=PrecisionChoice.FULL, threads=1, token_budget=256))
    assert prepare(place, Told()).problems == ()
    assert not (place.state / "engines").exists()
    assert served(place) == "fp32"


def test_without_a_calibration_set_full_precision_is_served(place: Place, tmp_path: Path, clock: Clock) -> None:
    """It is tried again later each time, and rests after five failures; a set that comes is taken at once."""
    there = place.calibration
    place = changed(place, calibration=tmp_path / "not-here")
    for wait in (60, 300, 1800, 7200):
        prepared = prepare(place, Told())
        assert "there is no calibration set at" in prepared.problems[0]
        assert prepared.retry_in_s == wait
        soon = prepare(place, Told())
        assert f"tries it again, {wait} s from now" in soon.problems[0]
        clock.sleep(wait + 1)
    assert served(place) == "fp32"
    rests = prepare(place, Told())
    assert "(5 times; it rests now); `orin-rerank prepare --again`" in rests.problems[0]
    assert rests.retry_in_s is None
    clock.sleep(1e6)
    assert prepare(place, Told()).problems == rests.problems
    assert "there is no calibration set" in prepare(place, Told(), again=True).problems[0]
    assert journal(place)["calibrate"]["failures"] == 1
    assert there is not None
    shutil.copytree(there, tmp_path / "not-here")
    assert prepare(place, Told()).problems == ()
    assert served(place) == "int8"


def test_a_clock_in_1970_neither_hurries_nor_holds_up(place: Place, tmp_path: Path, clock: Clock) -> None:
    place = changed(place, calibration=tmp_path / "not-here")
    prepare(place, Told())
    clock.wall_s = 4e9  # the time became known; since boot nothing has passed
    assert "tries it again, 60 s from now" in prepare(place, Told()).problems[0]
    clock.reboot(wall_s=0.0)
    assert prepare(place, Told()).retry_in_s == 300
    assert journal(place)["calibrate"]["failures"] == 2
    clock.reboot(wall_s=200.0)
    assert "tries it again, 100 s from now" in prepare(place, Told()).problems[0]


def test_int8_that_is_refused_is_not_made_again(place: Place, clock: Clock) -> None:
    place = changed(place, thresholds=GateThresholds(min_correlation=1))
    prepared = prepare(place, Told())
    assert of(prepared, Step.CALIBRATE).outcome is Outcome.REFUSED
    assert prepared.retry_in_s is None
    clock.reboot()
    told = Told()
    assert "INT8 is refused" in prepare(place, told).problems[0]
    assert [str(progress) for progress in told.heard if progress.step is Step.CALIBRATE] == [
        "calibrate: looking what there is"
    ]
    assert served(place) == "fp32"


def test_a_stop_is_no_failure(place: Place) -> None:
    with pytest.raises(UnavailableError):
        prepare(place, Told(stop_at="searching smoothing"))
    entry = journal(place)["calibrate"]
    assert (entry["outcome"], entry["failures"]) == ("stopped", 0)
    assert prepare(place, Told()).problems == ()


def test_ctrl_c_is_none_either(place: Place) -> None:
    class Impatient(Told):
        def __call__(self, progress: object) -> None:
            if "observing activations" in str(progress):
                raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            prepare(place, Impatient())
        assert (journal(place)["calibrate"]["outcome"], journal(place)["calibrate"]["failures"]) == ("stopped", 0)


def test_what_is_cut_off_each_time_rests_at_last(place: Place) -> None:
    class PowerCut(BaseException):
        """Nothing in the program catches it."""

    class Cut(Told):
        def __call__(self, progress: object) -> None:
            if "observing activations" in str(progress):
                raise PowerCut

    for _ in range(5):
        with pytest.raises(PowerCut):
            prepare(place, Cut())
    prepared = prepare(place, Cut())
    assert "was cut off: the power, the process or its memory went (5 times; it rests now)" in prepared.problems[0]
    assert served(place) == "fp32"
    assert prepare(place, Told(), again=True).problems == ()


def test_a_stop_that_comes_to_no_end_in_time_is_no_failure_either(place: Place, clock: Clock) -> None:
    """The process is ended while a step runs, and notes before that it is in order."""
    for _ in range(4):
        Journal(place.state, clock).begin(Step.CALIBRATE, {"bundle": "b"})
        Journal(place.state, clock).stop()
        assert Journal(place.state, clock).wait_s(Step.CALIBRATE, {"bundle": "b"}) == 0
    assert journal(place)["calibrate"]["failures"] == 0
    Journal(place.state, clock).got_further(Step.CALIBRATE)
    assert journal(place)["calibrate"]["stops"] == 0


def test_what_is_stopped_each_time_before_its_end_rests_at_last(place: Place) -> None:
    """A machine that is switched off every evening, earlier than it can be calibrated, serves all the same."""
    for _ in range(5):
        with pytest.raises(UnavailableError):
            prepare(place, Told(stop_at="reading the sets"))
    prepared = prepare(place, Told())
    assert "leave the machine on until then (5 times; it rests now); `orin-rerank" in prepared.problems[0]
    assert served(place) == "fp32"
    assert prepare(place, Told(), again=True).problems == ()


def test_whatever_a_step_raises_once_it_is_to_stop_is_a_stop(place: Place) -> None:
    """systemd asks the compiler to end, too, which then looks as if it had failed."""

    class Stopping(Told):
        def __call__(self, progress: object) -> None:
            if "reading the sets" in str(progress):
                self.stopping = True
                raise CalibrationError("something that the daemon asked has ended")

    with pytest.raises(UnavailableError):
        prepare(place, Stopping())
    assert (journal(place)["calibrate"]["outcome"], journal(place)["calibrate"]["failures"]) == ("stopped", 0)


def test_two_processes_do_not_undo_each_others_notes(place: Place, clock: Clock) -> None:
    """`orin-rerank prepare` beside a daemon."""
    daemon, prepare_ = Journal(place.state, clock), Journal(place.state, clock)
    daemon.begin(Rung.PROCESSOR_INT8, {})
    prepare_.found(Step.BOARD, {}, Outcome.DONE, "a PC")
    daemon.drop(Rung.PROCESSOR_INT8)
    prepare_.found(Step.MEMORY, {}, Outcome.DONE, "fits")
    assert journal(place).keys() == {"board", "memory"}
    for _ in range(3):
        daemon.begin(Step.CALIBRATE, {})
    prepare_.forget()
    daemon.got_further(Step.CALIBRATE)
    assert journal(place) == {}
    daemon.end(Step.CALIBRATE, Outcome.FAILED, "no luck")
    assert journal(place).keys() == {"calibrate"}
    assert journal(place)["calibrate"]["failures"] == 1, "what was forgotten counts no more"
    before = prepare_.begin(Step.CALIBRATE, {})
    daemon.begin(Step.CALIBRATE, {})
    daemon.end(Step.CALIBRATE, Outcome.DONE, "made")
    prepare_.put_back(Step.CALIBRATE, before)
    assert journal(place)["calibrate"]["outcome"] == "done"


def test_another_bundle_is_another_key(place: Place, tmp_path: Path, clock: Clock) -> None:
    place = changed(place, calibration=tmp_path / "not-here")
    prepare(place, Told())
    entry = journal(place)["calibrate"]
    assert entry["key"]["calibration"] == "missing"
    # As after an update: what was counted for the bundle before does not count for this one.
    other = shutil.copytree(place.bundle, tmp_path / "other")
    manifest = Bundle.open(other).manifest
    seal(other, dataclasses.replace(manifest, name="other"), manifest.files)
    prepared = prepare(changed(place, bundle=other), Told())
    assert prepared.retry_in_s == 60


def test_another_version_tries_again_what_failed_with_the_one_before(place: Place) -> None:
    place = changed(place, thresholds=GateThresholds(min_correlation=1))
    prepare(place, Told())
    file = place.state / JOURNAL_FILE
    file.write_text(file.read_text().replace(f'"version": "{__version__}"', '"version": "0.0.9"'))
    told = Told()
    assert of(prepare(place, told), Step.CALIBRATE).outcome is Outcome.REFUSED
    assert any("reading the sets" in str(progress) for progress in told.heard)


def test_a_step_that_another_process_takes_is_no_failure(place: Place, clock: Clock) -> None:
    key = Make(place, Bundle.open(place.bundle)).calibration().key  # type: ignore[union-attr]
    with place.engines.staging(Bundle.open(place.bundle).digest):
        Journal(place.state, clock).begin(Step.CALIBRATE, key)
        before = journal(place)["calibrate"]
        prepared = prepare(place, Told())
    assert "another process is making an engine for this bundle: wait until it is done" in prepared.problems[0]
    assert prepared.retry_in_s == 60
    assert journal(place)["calibrate"] == before


def test_what_a_step_that_rests_has_left_is_removed(place: Place, clock: Clock) -> None:
    bundle = Bundle.open(place.bundle)
    key = Make(place, bundle).calibration().key  # type: ignore[union-attr]
    for _ in range(5):
        Journal(place.state, clock).begin(Step.CALIBRATE, key)
    left = place.state / "engines" / bundle.digest / ".staging-138"
    left.mkdir(parents=True)
    (left / "weights.bin").touch()
    assert "it rests now" in prepare(place, Told()).problems[0]
    assert not left.exists()


def test_a_machine_that_is_too_small_is_told_so_with_the_numbers(place: Place) -> None:
    host = HostMemory(600 << 20, 500 << 20, 0)
    prepared = prepare(changed(place, accelerators=Accelerators(host_memory=lambda: host)), Told())
    memory = of(prepared, Step.MEMORY)
    assert memory.outcome is Outcome.FAILED
    numbers = re.search(r"takes ([\d.]+) GiB, .* this machine has ([\d.]+) GiB for it, of 0.5 GiB in all", memory.text)
    assert numbers is not None, memory.text
    assert float(numbers[1]) > float(numbers[2]), "what is usable is less than what is needed"


def test_what_fits_is_told_of_what_serving_may_take(place: Place) -> None:
    host = HostMemory(8 << 30, 7 << 30, 0)
    prepared = prepare(changed(place, accelerators=Accelerators(host_memory=lambda: host)), Told())
    text = of(prepared, Step.MEMORY).text
    assert re.fullmatch(r"INT8 or full precision fits, one at a time \([\d.]+ [GM]iB of [\d.]+ GiB\)", text), text
    assert "8.0 GiB" not in text


def test_too_little_memory_is_told_with_the_numbers(place: Place) -> None:
    host = HostMemory(700 << 20, 1 << 20, 0)
    prepared = prepare(changed(place, accelerators=Accelerators(host_memory=lambda: host)), Told())
    assert "GiB" in of(prepared, Step.CALIBRATE).text or "MiB" in of(prepared, Step.CALIBRATE).text
    assert prepared.retry_in_s == 60


def test_too_little_disk_is_told_with_the_numbers(tmp_path: Path) -> None:
    check_disk(tmp_path / "not" / "yet", 1 << 20, "an INT8 engine")
    with pytest.raises(NoSpaceError) as caught:
        check_disk(tmp_path, 1 << 60, "an INT8 engine")
    assert caught.value.message.startswith("an INT8 engine takes 1,152,921,504,607 MB, 268 MB must stay free, and ")
    assert caught.value.item == str(tmp_path)


def test_a_journal_that_is_damaged_is_as_good_as_none(place: Place) -> None:
    place.state.mkdir()
    moments = (
        '{"wall_s": 0, "boot_id": "", "boot_s": null}, "failures": 0',
        '{"wall_s": Infinity, "boot_id": "", "boot_s": 0}, "failures": 0',
        '{"wall_s": 0, "boot_id": "", "boot_s": 0}, "failures": 1e999',
        '[], "failures": 0',
    )
    entry = '{"format": 1, "steps": {"calibrate": {"key": {}, "outcome": "failed", "text": "", "moment": %s}}}'
    for text in (
        "",
        "{",
        "[" * 100_000,
        '{"format": 99, "steps": {}}',
        '{"format": 1, "steps": {"calibrate": {"key": 3}}}',
        *(entry % moment for moment in moments),
    ):
        (place.state / JOURNAL_FILE).write_text(text)
        with pytest.raises(UnavailableError):
            prepare(place, Told(stop_at="reading the sets"))
    assert journal(place)["calibrate"]["outcome"] == "stopped"


def test_without_a_bundle_nothing_is_begun(place: Place, tmp_path: Path) -> None:
    with pytest.raises(BundleError):
        prepare(changed(place, bundle=tmp_path / "none"), Told())
    assert not place.state.exists()


def test_where_nothing_can_be_served_it_waits_and_tries_again(place: Place, tmp_path: Path) -> None:
    """INT8 or nothing, and there is no calibration set until somebody brings one."""
    there = place.calibration
    engine = dataclasses.replace(place.engine, precision=PrecisionChoice.INT8, device=DeviceChoice.CPU)
    place = changed(place, engine=engine, calibration=tmp_path / "later")
    told = Told()
    problems: list[tuple[str, ...]] = []

    def on_prepared(prepared: Prepared) -> None:
        problems.append(prepared.problems)
        if len(problems) == 2:
            assert there is not None
            shutil.copytree(there, tmp_path / "later")

    model = prepare_and_load(place, told, on_prepared)
    assert model.info.precision == "int8"
    model.close()
    assert len(problems) == 3
    assert problems[-1] == ()
    waits = [progress for progress in told.heard if progress.step is Step.WAIT]
    assert waits[0].seconds_left == 60
    assert "no INT8 engine is installed" in waits[0].reason

"""First boot of a Jetson: a real board's tree, a compiler and a GPU that are fakes, everything else the project's."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from engines.tensorrt.fake_bindings import FakeGpu
from fakes.board import AGX_ORIN_64, make_board, power_gpu_on
from lifecycle.first_boot.conftest import Clock, Told, changed
from lifecycle.first_boot.fake_jetson import Builder, on_jetson, tuned
from lifecycle.first_boot.test_machine import journal, of
from lifecycle.test_device_choice import LOST
from orin_rerank.board.tuning import KEEP, Tuning, TuningOutcome
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.errors import DeviceLostError, GpuMissingError, TensorRtMissingError, UnavailableError
from orin_rerank.lifecycle.accelerators import Accelerators
from orin_rerank.lifecycle.doctor.probe import MachineProbe
from orin_rerank.lifecycle.first_boot.journal import Outcome
from orin_rerank.lifecycle.first_boot.machine import prepare, prepare_and_load
from orin_rerank.lifecycle.first_boot.place import is_allowed
from orin_rerank.lifecycle.first_boot.progress import Step

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.first_boot.place import Place


@dataclasses.dataclass
class Orin:
    """A Jetson that is prepared again and again."""

    place: Place
    builder: Builder
    gpu: FakeGpu

    def upgraded(self, release: str) -> Orin:
        """After JetPack was upgraded to one with another TensorRT."""
        return dataclasses.replace(self, place=on_jetson(self.place, self.builder, self.gpu, release))

    def served(self) -> str:
        place = on_jetson(self.place, self.builder, FakeGpu(integrated=True), self.place.find_target().runtime)
        model = prepare_and_load(place, Told(), lambda _: None)
        model.close()
        return f"{model.info.name} {model.info.precision}"


@pytest.fixture(scope="module")
def prepared_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jetson") / "state"


@pytest.fixture
def orin(place: Place, jetson: BoardPaths, prepared_state: Path, tmp_path: Path) -> Orin:
    """A Jetson with an INT8 engine; nothing compiled. It is calibrated once for all tests."""
    if not prepared_state.exists():
        assert prepare(changed(place, state=prepared_state), Told()).problems == ()
        (prepared_state / "first-boot.json").unlink()
    shutil.copytree(prepared_state, place.state, symlinks=True)
    tuned(jetson, tmp_path / "board-state")
    builder, gpu = Builder(), FakeGpu(integrated=True)
    return Orin(on_jetson(changed(place, paths=jetson), builder, gpu), builder, gpu)


def test_everything_once_then_nothing(orin: Orin) -> None:
    told = Told()
    prepared = prepare(orin.place, told)
    assert prepared.problems == ()
    assert [(result.step.value, result.text.split(";")[0]) for result in prepared.steps] == [
        ("board", "Jetson AGX Orin 64GB, L4T 36.4.7"),
        ("memory", prepared.steps[1].text),
        ("power-mode", "power mode MAXN"),
        ("clocks", "clocks are locked"),
        ("gpu", "fake 0, tensorrt 10.3.0"),
        ("calibrate", "an INT8 engine is installed"),
        ("build-int8", "int8-fp16 plans compiled in 0 s"),
        ("build-full", "fp16 plans compiled in 0 s"),
    ]
    assert "INT8 passed its gate on this GPU" in of(prepared, Step.BUILD_INT8).text
    assert told.steps[-3:] == ["build-int8", "gate", "build-full"]
    assert orin.served() == "tensorrt int8-fp16"
    orin.builder.compiler.compiled.clear()
    assert prepare(orin.place, Told()).problems == ()
    assert orin.builder.compiler.compiled == []


def test_after_an_upgrade_of_jetpack_plans_are_made_again_and_nothing_else(orin: Orin) -> None:
    prepare(orin.place, Told())
    orin.builder.compiler.compiled.clear()
    later = orin.upgraded("tensorrt 10.16.2")
    prepared = prepare(later.place, Told())
    assert prepared.problems == ()
    assert of(prepared, Step.CALIBRATE).text == "an INT8 engine is installed"
    assert len(orin.builder.compiler.compiled) == 4
    assert journal(later.place)["build-int8"]["key"]["runtime"] == "tensorrt 10.16.2"
    assert later.served() == "tensorrt int8-fp16"
    orin.builder.compiler.compiled.clear()
    assert prepare(orin.place, Told()).problems == ()
    assert orin.builder.compiler.compiled == [], "plans of the release before are kept for a rollback"


def test_int8_that_cannot_be_compiled_leaves_full_precision(orin: Orin, clock: Clock) -> None:
    orin.builder.fails = {"int8"}
    prepared = prepare(orin.place, Told())
    assert of(prepared, Step.BUILD_FULL).outcome is Outcome.DONE
    (problem,) = prepared.problems
    assert problem.startswith("build-int8: text.primitive.int8-fp16.onnx: could not find any implementation; what is")
    assert orin.served() == "tensorrt fp16"
    clock.sleep(61)
    orin.builder.fails.clear()
    assert prepare(orin.place, Told()).problems == ()
    assert orin.served() == "tensorrt int8-fp16"


def test_what_the_gate_refuses_is_not_compiled_again(orin: Orin, clock: Clock) -> None:
    orin.builder.compiler.coarse = 4.0
    prepared = prepare(orin.place, Told())
    assert of(prepared, Step.BUILD_INT8).outcome is Outcome.REFUSED
    assert "the gate refuses INT8" in of(prepared, Step.BUILD_INT8).text
    orin.builder.compiler.compiled.clear()
    clock.sleep(1e6)
    assert "the gate refuses INT8 on this GPU" in prepare(orin.place, Told()).problems[0]
    assert orin.builder.compiler.compiled == []
    assert orin.served() == "tensorrt fp16"


def test_a_build_is_stopped_though_the_compiler_says_nothing(orin: Orin) -> None:
    orin.builder.hangs = True

    class Stopping(Told):
        @property
        def stopping(self) -> bool:  # type: ignore[override]
            return any(progress.step is Step.BUILD_INT8 for progress in self.heard)

        @stopping.setter
        def stopping(self, value: bool) -> None:
            pass

        def __call__(self, progress: Any) -> None:
            self.heard.append(progress)

    with pytest.raises(UnavailableError):
        prepare(orin.place, Stopping())
    assert journal(orin.place)["build-int8"]["outcome"] == "stopped"


def test_a_lost_gpu_ends_the_process_and_is_counted(orin: Orin) -> None:
    orin.gpu.failing["execute_async_v3"] = LOST
    with pytest.raises(DeviceLostError):
        prepare(orin.place, Told())
    entry = journal(orin.place)["build-int8"]
    assert (entry["outcome"], entry["failures"]) == ("failed", 1)
    fresh = on_jetson(orin.place, orin.builder, FakeGpu(integrated=True))
    assert "tries it again, 60 s from now" in prepare(fresh, Told()).problems[0]


def test_a_gpu_that_comes_up_late_is_waited_for(orin: Orin, jetson: BoardPaths, clock: Clock) -> None:
    node = jetson.at("/dev/nvhost-gpu")
    node.unlink()
    started = clock.boot_s

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.boot_s > started + 30:
            node.touch()

    told = Told()
    assert prepare(changed(orin.place, sleep=sleep), told).problems == ()
    assert [str(progress) for progress in told.heard if progress.step is Step.GPU][:2] == [
        "gpu: looking",
        "gpu: waiting for the GPU's driver",
    ]


def test_a_gpu_that_the_service_may_not_open_since_it_came_later_ends_the_process_once(
    orin: Orin, jetson: BoardPaths, clock: Clock
) -> None:
    """systemd turns the names of devices into numbers when it starts a service; the next start has them."""
    node = jetson.at("/dev/nvhost-gpu")
    node.unlink()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        node.touch()

    place = changed(orin.place, sleep=sleep, is_allowed=lambda asked: asked != node)
    with pytest.raises(DeviceLostError, match="came up after the daemon"):
        prepare(place, Told())
    # Where it comes late each time, there would be no end to it.
    node.unlink()
    assert "gpu: came up after the daemon" in prepare(place, Told()).problems[0]
    # Nor where it is there from the start, and may not be opened either.
    assert prepare(place, Told()).problems == ()


def test_a_gpu_that_nobody_has_powered_on_is_powered_on_by_cuda(orin: Orin, jetson: BoardPaths, clock: Clock) -> None:
    """Its driver has made the node `power` alone, and makes the others in a region of their own."""
    jetson.at("/dev/nvhost-gpu").unlink()
    power_gpu_on(jetson, fails=True)
    tries: list[float] = []

    def probe() -> MachineProbe:
        tries.append(clock.boot_s)
        if jetson.at("/etc/firmware").exists():
            power_gpu_on(jetson)
        return MachineProbe(pycuda="2026.1", gpu_problem="no device")

    place = changed(orin.place, probe=probe)
    assert "the driver could not power the GPU on within 120 s" in prepare(place, Told()).problems[0]
    assert len(tries) == 1, "it is tried once, and then waited for"
    jetson.at("/etc/firmware").mkdir()
    with pytest.raises(DeviceLostError, match="came up after the daemon"):
        prepare(changed(place, is_allowed=lambda node: node.name == "power"), Told())


def test_what_mode_and_owner_say_is_another_matter(tmp_path: Path) -> None:
    node = tmp_path / "node"
    assert is_allowed(node)
    node.touch(0o000)
    assert is_allowed(node)


def test_soon_after_boot_cuda_is_tried_elsewhere_until_it_works(orin: Orin, clock: Clock) -> None:
    """A process in which CUDA failed once may never see the GPU."""
    tries: list[float] = []

    def probe() -> MachineProbe:
        tries.append(clock.boot_s)
        return MachineProbe(pycuda="2026.1", gpu=None if len(tries) < 4 else FakeGpu(integrated=True).open(0))

    assert prepare(changed(orin.place, probe=probe), Told()).problems == ()
    assert len(tries) == 4
    clock.boot_s = 400
    prepare(changed(orin.place, probe=probe), Told())
    assert len(tries) == 4, "long after boot there is nothing to wait for"


@pytest.mark.parametrize("missing", ["driver", "TensorRT", "GPU"])
def test_a_jetson_never_serves_on_its_processor_without_saying_so(
    orin: Orin, jetson: BoardPaths, missing: str, clock: Clock
) -> None:
    def none() -> Any:
        error = TensorRtMissingError if missing == "TensorRT" else GpuMissingError
        raise error(f"no {missing} was found")

    place = orin.place
    if missing == "driver":
        jetson.at("/dev/nvhost-gpu").unlink()
    elif missing == "TensorRT":
        place = changed(place, accelerators=dataclasses.replace(place.accelerators, tensorrt=none))
    else:
        place = changed(place, find_target=none)
    before = clock.boot_s
    prepared = prepare(place, Told())
    (problem,) = prepared.problems
    assert problem.startswith("gpu: ")
    assert missing in problem
    assert clock.boot_s - before == (120 if missing == "driver" else 0)
    if missing != "driver":
        broken = Accelerators(none, none)
        model = prepare_and_load(changed(place, accelerators=broken), Told(), lambda _: None)
        model.close()
        assert model.info.name == "onnxruntime-cpu"


class TestWhatTheRootServiceDoes:
    def test_it_is_waited_for_and_missed(self, place: Place, jetson: BoardPaths, clock: Clock) -> None:
        before = clock.boot_s
        prepared = prepare(stopped_before_calibrating(changed(place, paths=jetson)), Told())
        assert [problem.split(":")[0] for problem in prepared.problems][:2] == ["power-mode", "clocks"]
        assert "has not said within 60 s" in prepared.problems[0]
        assert "systemctl status orin-rerank-board" in prepared.problems[1]
        assert clock.boot_s - before == 120

    def test_it_is_not_waited_for_where_there_is_nothing_for_it_to_do(
        self, place: Place, jetson: BoardPaths, clock: Clock
    ) -> None:
        before = clock.boot_s
        left_alone = changed(place, paths=jetson, tuning=Tuning(power_mode=KEEP, lock_clocks=False))
        prepared = prepare(stopped_before_calibrating(left_alone), Told())
        assert of(prepared, Step.POWER_MODE).outcome is of(prepared, Step.CLOCKS).outcome is Outcome.DONE
        assert clock.boot_s == before

    def test_a_mode_that_takes_a_reboot_is_told(self, place: Place, tmp_path: Path) -> None:
        paths = make_board(tmp_path / "waits", AGX_ORIN_64)
        paths.at("/fake/needs_reboot").write_text("0\n")
        tuned(paths, tmp_path / "state-of-board")
        prepared = prepare(stopped_before_calibrating(changed(place, paths=paths)), Told())
        problem = of(prepared, Step.POWER_MODE).text
        assert problem.startswith("power mode MAXN: takes a reboot, until which the board is in MODE_30W")
        assert of(prepared, Step.CLOCKS).outcome is Outcome.DONE

    def test_what_it_could_not_do_is_told_with_why(self, place: Place, jetson: BoardPaths, tmp_path: Path) -> None:
        tuned(jetson, tmp_path / "b", mode="MODE_30W", problem="nvpmodel failed")
        prepared = prepare(stopped_before_calibrating(changed(place, paths=jetson)), Told())
        assert "nvpmodel failed" in of(prepared, Step.POWER_MODE).text
        assert "nvpmodel failed" in prepared.problems[0]
        tuned(jetson, tmp_path / "b")
        told = [problem.split(":")[0] for problem in prepared.now().problems]
        assert told == ["gpu"], "whoever asks later hears what is so then"

    @pytest.mark.parametrize("reboot_needed", [False, True])
    def test_a_mode_that_was_given_back_is_told(
        self, place: Place, jetson: BoardPaths, tmp_path: Path, reboot_needed: bool
    ) -> None:
        tuned(jetson, tmp_path / "b", mode="MODE_30W", wanted=None, reboot_needed=reboot_needed)
        problem = of(prepare(stopped_before_calibrating(changed(place, paths=jetson)), Told()), Step.POWER_MODE).text
        assert problem.startswith("power mode: is not set: the root service has given it back")
        assert problem.endswith("; the board is in MODE_30W, and `sudo orin-rerank board apply` tries again")

    def test_what_keeps_the_root_service_from_any_mode_is_told(
        self, place: Place, jetson: BoardPaths, tmp_path: Path
    ) -> None:
        tuned(jetson, tmp_path / "b", mode="MODE_30W", wanted=None, problem="the settings are wrong: line 3")
        problem = of(prepare(stopped_before_calibrating(changed(place, paths=jetson)), Told()), Step.POWER_MODE).text
        assert problem.startswith("power mode: is not set: the settings are wrong: line 3; the board is in MODE_30W")

    def test_a_mode_that_the_settings_have_changed_to_is_told(
        self, place: Place, jetson: BoardPaths, tmp_path: Path
    ) -> None:
        tuned(jetson, tmp_path / "b")
        changed_place = changed(place, paths=jetson, tuning=Tuning(power_mode="MODE_15W"))
        problem = of(prepare(stopped_before_calibrating(changed_place), Told()), Step.POWER_MODE).text
        assert problem.startswith(
            "power mode MODE_15W: is not set: the settings have changed since the board was put into"
        )
        assert "systemctl restart orin-rerank-board" in problem

    def test_a_board_whose_system_is_too_old_is_told(self, place: Place, jetson: BoardPaths) -> None:
        jetson.at("/etc/nv_tegra_release").write_text("# R35 (release), REVISION: 4.1, GCID: 1\n")
        prepared = prepare(stopped_before_calibrating(changed(place, paths=jetson)), Told())
        assert "JetPack 5.1 has no TensorRT that can be used" in of(prepared, Step.BOARD).text


def stopped_before_calibrating(place: Place) -> Place:
    """One that makes nothing, for tests of what is only looked at."""
    full = EngineSettings(precision=type(place.engine.precision)("full"), threads=1, token_budget=256)
    settings = dataclasses.replace(place.settings, gpu_wait_s=0.0)
    return changed(place, engine=full, settings=settings)


def test_an_outcome_is_what_the_service_writes() -> None:
    assert b'"format": 1' in TuningOutcome().to_json()

"""The steps that change nothing: what the machine is, and whether it is as it shall be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orin_rerank.board.clocks import read_clocks
from orin_rerank.board.gpu_nodes import jetson_nodes
from orin_rerank.board.jetson_clocks import PROGRAM as CLOCKS_PROGRAM
from orin_rerank.board.module import identify_board
from orin_rerank.board.nvpmodel import how_to_reboot_for
from orin_rerank.board.power_modes import read_power_modes
from orin_rerank.board.request import OUTCOME
from orin_rerank.board.tuning import KEEP, are_clocks_locked, read_outcome, wanted_mode
from orin_rerank.engines.bundle import TOKENIZER_FILE
from orin_rerank.engines.footprint import EngineKind
from orin_rerank.engines.memory_plan import MemoryBudget, gib
from orin_rerank.engines.memory_planner import Residency, plan_policies
from orin_rerank.engines.settings import DeviceChoice
from orin_rerank.errors import BoardBusyError, BoardError, DeviceLostError, GpuMissingError, RebootNeededError
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.first_boot.progress import Progress, Step
from orin_rerank.lifecycle.sizes import model_size
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.board.module import Board
    from orin_rerank.board.tuning import TuningOutcome
    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.lifecycle.compile_target import CompileTarget
    from orin_rerank.lifecycle.first_boot.place import Place
    from orin_rerank.lifecycle.first_boot.progress import Listener

__all__ = ["Look"]

_POLL_S: Final = 0.5

_EARLY_S: Final = 300.0
"""Later than this after a boot, a GPU that cannot be opened will not come up by itself."""

_RESIDENCY: Final = {
    Residency.SWAPPED: "INT8 or full precision fits, one at a time",
    Residency.ONE: "INT8 alone fits, so there is nothing to step down to",
}
_HOW_TO_ASK_ROOT: Final = "`systemctl status orin-rerank-board` says more"


class Look:
    """Looks at a machine; each method returns what it found, for people, or raises what is not as it shall be.

    Args:
        place: The machine.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._board = identify_board(place.paths)
        self._woken = False

    @property
    def machine(self) -> Board:
        """What it is."""
        return self._board

    def board(self, _: Listener) -> str:
        """Which module this is.

        Raises:
            BoardError: If its system is too old.
        """
        board = self._board
        name = board.kind.name if board.kind is not None else board.model
        if not board.is_jetson:
            return name
        release = board.release
        if release is not None and not release.supported:
            jetpack = f"JetPack {release.jetpack}" if release.jetpack else f"L4T {release}"
            raise BoardError(f"{jetpack} has no TensorRT that can be used: JetPack 6.1 is the oldest", item=name)
        what = f"{name}, {f'L4T {release}' if release is not None else 'an unknown release'}"
        return f"{what}; {board.doubt}" if board.doubt else what

    def memory(self, bundle: Bundle) -> str:
        """What of a model fits.

        Raises:
            MemoryShortError: If nothing does.
        """
        place = self._place
        host = place.accelerators.host_memory()
        on_gpu = self._board.is_jetson and place.engine.device is not DeviceChoice.CPU
        served = Precision.INT8_FP16 if on_gpu else Precision.INT8
        full = Precision.FP16 if on_gpu else Precision.FP32
        encoder = PromptEncoder(bundle.manifest.prompt, PromptTokenizer.from_file(bundle.folder / TOKENIZER_FILE))
        of = MemoryBudget.of_machine if on_gpu else MemoryBudget.of_processor
        budget = of(host.total_bytes)
        policies = plan_policies(
            model_size(bundle, encoder, full),
            EngineKind.TENSORRT if on_gpu else EngineKind.PROCESSOR,
            budget,
            place.engine,
            (served, full),
        )
        # A start loads one precision; whether both would fit side by side does not matter to it.
        ways = [policy for policy in policies if policy.residency is not Residency.BOTH]
        best = next((policy for policy in ways if policy.fits), None)
        if best is None:
            assert ways[-1].problem is not None
            raise ways[-1].problem
        usable = gib(place.engine.memory_bytes or budget.usable_bytes)
        return f"{_RESIDENCY[best.residency]} ({gib(best.needed_bytes)} of {usable})"

    def power_mode(self, listener: Listener) -> str:
        """Whether the root service has set the power mode.

        Raises:
            RebootNeededError: If the mode waits for a reboot.
            BoardBusyError: If the root service does not answer in time, could not set it, or was asked for another.
            BoardError: If the board has no such mode.
        """
        modes = read_power_modes(self._place.paths) if self._board.is_jetson else None
        if modes is None:
            return "this machine has no power modes"
        if self._place.tuning.power_mode == KEEP:
            return "the power mode is left alone"
        outcome = self._outcome(listener, Step.POWER_MODE)
        if outcome.wanted is None:
            why = outcome.problem or "the root service has given it back, or was to leave it alone"
            raise BoardBusyError(
                f"is not set: {why}; the board is in {outcome.mode}, and `sudo orin-rerank board apply` tries again",
                item="power mode",
            )
        if outcome.reboot_needed:
            how = how_to_reboot_for(modes.find(outcome.wanted))
            raise RebootNeededError(
                f"takes a reboot, until which the board is in {outcome.mode}: {how}, makes it, and no other does; or "
                "set reboot = true in [board]",
                item=f"power mode {outcome.wanted}",
            )
        if outcome.mode != outcome.wanted:
            problem = outcome.problem or f"the board is in {outcome.mode}"
            raise BoardBusyError(f"is not set: {problem}; {_HOW_TO_ASK_ROOT}", item=f"power mode {outcome.wanted}")
        wanted = wanted_mode(self._place.paths, modes, self._place.tuning)
        if wanted is not None and wanted.name != outcome.mode:
            raise BoardBusyError(
                f"is not set: the settings have changed since the board was put into {outcome.mode}; "
                "`systemctl restart orin-rerank-board` sets it",
                item=f"power mode {wanted.name}",
            )
        return f"power mode {outcome.mode}"

    def clocks(self, listener: Listener) -> str:
        """Whether clocks are locked, if they shall be.

        Raises:
            BoardBusyError: If they are not.
        """
        paths = self._place.paths
        if not self._board.is_jetson or paths.program(CLOCKS_PROGRAM) is None:
            return "this machine locks no clocks"
        if not self._place.tuning.lock_clocks:
            return "clocks are left alone"
        if not read_clocks(paths).locked:
            outcome = self._outcome(listener, Step.CLOCKS)
            if not are_clocks_locked(paths, outcome):
                problem = f": {outcome.problem}" if outcome.problem else ""
                raise BoardBusyError(f"are not locked{problem}; {_HOW_TO_ASK_ROOT}", item="clocks")
        return "clocks are locked"

    def gpu(self, listener: Listener) -> CompileTarget | str:
        """Waits for a Jetson's GPU, which may come up after the daemon.

        Returns:
            The GPU as TensorRT compiles for it; what is the case instead, for people, where none is expected.

        Raises:
            TensorRtMissingError: If this is a Jetson, and TensorRT is not installed.
            GpuMissingError: If this is a Jetson, and its GPU did not come up.
            DeviceLostError: If it came up after the service manager had started this process without it.
        """
        place = self._place
        if place.engine.device is DeviceChoice.CPU:
            return "the processor was asked for"
        if self._board.is_jetson:
            seconds = place.settings.gpu_wait_s
            is_late = not jetson_nodes(place.paths).gpu
            if not self._until(listener, Progress(Step.GPU, "waiting for the GPU's driver"), self._is_up, seconds):
                what = "could not power the GPU on" if jetson_nodes(place.paths).power else "did not come up"
                raise GpuMissingError(
                    f"the driver {what} within {seconds:g} s; what is served is computed on the processor: "
                    "restart the daemon when it is there, or look for nvgpu in the kernel's messages",
                    item="/dev/nvhost-gpu",
                )
            if is_late and not all(place.is_allowed(node) for node in jetson_nodes(place.paths).gpu[:1]):
                raise DeviceLostError("came up after the daemon, which systemd lets open it when it is started again")
        place.accelerators.tensorrt()
        if self._board.is_jetson and place.now().boot_s < _EARLY_S:
            waiting = Progress(Step.GPU, "waiting until the GPU can be opened")
            self._until(listener, waiting, self._opens, place.settings.gpu_wait_s)
        return place.find_target()

    def _opens(self) -> bool:
        """Whether the GPU can be opened, tried in another process: CUDA may not try again in one where it failed."""
        probe = self._place.probe()
        return probe.gpu is not None or probe.pycuda is None

    def _is_up(self) -> bool:
        """Whether the GPU's driver is there, and the GPU on; once, CUDA is let try to power it on."""
        nodes = jetson_nodes(self._place.paths)
        if nodes.power and not nodes.gpu and not self._woken:
            self._woken = True
            self._opens()
            nodes = jetson_nodes(self._place.paths)
        return bool(nodes.gpu)

    def _outcome(self, listener: Listener, step: Step) -> TuningOutcome:
        """What the root service noted, once it has."""
        seconds = self._place.settings.board_wait_s
        file = self._place.paths.at(str(OUTCOME))
        waiting = Progress(step, "waiting for the root service")
        self._until(listener, waiting, lambda: read_outcome(file) is not None, seconds)
        outcome = read_outcome(file)
        if outcome is None:
            raise BoardBusyError(
                f"the root service has not said within {seconds:g} s what it set; {_HOW_TO_ASK_ROOT}", item=str(OUTCOME)
            )
        return outcome

    def _until(self, listener: Listener, progress: Progress, there: Callable[[], bool], seconds: float) -> bool:
        """Waits for something; returns whether it came to be. The listener may end the wait."""
        now = self._place.now
        begin_s = now().boot_s
        while not there():
            if now().boot_s - begin_s >= seconds:
                return False
            listener(progress)
            self._place.sleep(_POLL_S)
        return True

"""First boots of machines that are done harm, each in a process of its own; `booting` is what runs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifecycle.calibration_sets import write_calibration_set, write_judged_set
from orin_rerank.engines.bundle import Bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Boots", "Machine", "open_boots"]

HERE = Path(__file__).parent


@dataclass
class Machine:
    """One kind of machine, and what a first boot makes of it that nothing disturbs.

    Attributes:
        name: For requests.
        like: State that its first boots begin with; None is an empty one.
        best: What it serves in the end.
        changes: What is changed on disk until then, in order.
    """

    name: str
    like: str | None
    best: str
    changes: list[str] = field(default_factory=list)

    def is_best(self, answer: dict[str, Any]) -> bool:
        """Whether a boot served as well as this machine can."""
        return (answer.get("served"), answer.get("problems")) == (self.best, [])


class Boots:
    """First boots, each in a process of its own.

    Args:
        process: `booting`.
        folder: Where it keeps states.

    Attributes:
        machines: By name.
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder
        pc = self._undisturbed(Machine("pc", None, "int8 by onnxruntime-cpu"))
        # Calibrating is the same on both; what only a Jetson does comes after it.
        shutil.copytree(folder / "undisturbed-pc" / "engines", folder / "calibrated" / "engines", symlinks=True)
        jetson = self._undisturbed(Machine("jetson", "calibrated", "int8-fp16 by tensorrt"))
        self.machines = {"pc": pc, "jetson": jetson}

    def boot(
        self,
        machine: Machine,
        name: str,
        at: int = 0,
        error: int = 0,
        *,
        once: bool = False,
        later_s: float = 0.0,
        boot_id: str = "",
        up_s: float | None = None,
        deadly: Sequence[str] = (),
        lost: bool = False,
        like: str | None = None,
    ) -> dict[str, Any]:
        """Boots; `booting` says what goes in and comes out."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "machine": machine.name,
            "name": name,
            "like": like or machine.like,
            "at": at,
            "last": at if once else 1 << 40,
            "error": error,
            "later_s": later_s,
            "boot_id": boot_id,
            "up_s": up_s,
            "deadly": list(deadly),
            "lost": lost,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def forget(self, name: str) -> None:
        """Removes a state; there are thousands."""
        shutil.rmtree(self._folder / name)

    def state(self, name: str) -> Path:
        """Where a state is."""
        return self._folder / name

    def _undisturbed(self, machine: Machine) -> Machine:
        answer = self.boot(machine, f"undisturbed-{machine.name}")
        assert machine.is_best(answer), answer
        machine.changes = answer["changes"]
        return machine


@contextmanager
def open_boots(bundle_folder: Path, folder: Path) -> Iterator[Boots]:
    """Starts `booting`."""
    # The smallest sets that will do: thousands of calibrations are made of them.
    calibration = write_calibration_set(folder / "calibration", queries=10, pictures=1)
    judged = write_judged_set(folder / "judged", Bundle.open(bundle_folder), queries=50, pictures=0)
    shim = folder / "bad_disk.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, HERE / "bad_disk.c", "-ldl"], check=True)
    process = subprocess.Popen(
        [sys.executable, HERE / "booting.py", bundle_folder, calibration, judged, folder],
        env={**os.environ, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Boots(process, folder)
    finally:
        process.communicate(timeout=30)

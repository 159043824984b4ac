"""A process that compiles nothing, and ends in the ways in which real ones do; the graph's name says how."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

NVMAP = "NvMapMemAllocInternalTagged: 1075072515 error 12\nNvMapMemHandleAlloc: error 0\n"
NO_KERNEL = "Error Code 10: Could not find any implementation for node layers.0/mlp/down"
CUDA = "[defaultAllocator.cpp::allocate::52] Error Code 1: Cuda Runtime (out of memory)"


def tell(event: str, **values: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
    sys.stdout.flush()


def done(plan: Path) -> None:
    plan.write_bytes(b"plan")
    tell("BuildDone", runtime="fake 1", plan_bytes=4, layers=1, seconds=0.1, peak_bytes=1, timing_cache_used=False)


def failed(message: str, why: str = "other") -> None:
    tell("BuildFailed", why=why, message=message, item="graph.onnx: layers.0/attention/scores")


def die(number: signal.Signals, last_words: str = "") -> None:
    sys.stderr.write(last_words)
    sys.stderr.flush()
    os.kill(os.getpid(), number)


def succeed_in_256_mib(plan: Path, workspace: int) -> None:
    if workspace > 256 << 20:
        die(signal.SIGKILL)
    done(plan)


def crawl() -> None:
    for step in range(10_000):
        tell("StepDone", phase="Building engine", step=step)
        time.sleep(0.05)


def stop_when_asked(plan: Path) -> None:
    while os.read(sys.stdin.fileno(), 64):
        pass
    plan.with_name("stopped").touch()


def die_over_a_line() -> None:
    os.write(sys.stdout.fileno(), b'{"event": "BuilderSaid", "severity": "WARN')
    die(signal.SIGKILL)


def lose_memory_and_not_know_it() -> None:
    sys.stderr.write(NVMAP)
    failed(NO_KERNEL)


def hang_at_the_end() -> None:
    os.close(sys.stdout.fileno())
    time.sleep(600)


ENDS = {
    "hangs-at-the-end": lambda _, __: hang_at_the_end(),
    "good": lambda plan, _: done(plan),
    "good-too": lambda plan, _: done(plan),
    "killed": lambda _, __: die(signal.SIGKILL),
    "killed-above-256-mib": succeed_in_256_mib,
    "killed-over-a-line": lambda _, __: die_over_a_line(),
    "real-time-signal": lambda _, __: die(signal.SIGRTMIN + 3),  # type: ignore[arg-type]
    "nvmap": lambda _, __: die(signal.SIGABRT, NVMAP),
    "nvmap-then-no-kernel": lambda _, __: lose_memory_and_not_know_it(),
    "cuda": lambda _, __: failed(CUDA, why="memory"),
    "no-kernel": lambda _, __: failed(NO_KERNEL),
    "refused": lambda _, __: failed("No importer registered for op: Attention", why="refused"),
    "no-room": lambda _, __: tell(
        "BuildFailed", why="other", message="the plan cannot be written", item="text.plan", advice="make room"
    ),
    "missing": lambda _, __: failed("no bindings", why="missing"),
    "segfault": lambda _, __: die(signal.SIGSEGV, "a last word\n"),
    "babbles": lambda _, __: sys.stdout.write("[TRT] hello\n"),
    "silent": lambda _, __: time.sleep(600),
    "slow": lambda _, __: crawl(),
    "polite": lambda plan, _: stop_when_asked(plan),
    "says-nothing": lambda _, __: None,
}


def main() -> None:
    job = json.loads(sys.stdin.readline())
    plan = Path(job["plan"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    plan.with_name(f".{plan.name}.part").write_bytes(b"half a pl")
    tell("PhaseStarted", phase="Building engine", parent=None, steps=3)
    tell("StepDone", phase="Building engine", step=0)
    ENDS[Path(job["graph"]).stem](plan, job["workspace_bytes"])


main()

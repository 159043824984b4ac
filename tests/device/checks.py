# ruff: noqa: T201
"""Everything about memory, threads and streams that only a real GPU can show. Prints figures, exits with 1 on failure.

    PYTHONPATH=daemon:tests python tests/device/checks.py --out figures.json [--only trips equality ...]

Needs onnxruntime-gpu and pycuda. docs/device-figures.md holds what it last gave.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from parts import BLOCKS, RandomDecoder, Served, packs_of, pairs_of_bundle
from product import GPU, PROCESSOR, Confinement, check_chosen, check_ranking, rank_loaded, rank_served

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.cuda_driver import Driver, DriverStream
from orin_rerank.engines.footprint import EngineKind, overhead_bytes
from orin_rerank.engines.onnxruntime_sessions import assigned
from orin_rerank.engines.settings import DeviceChoice
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.packing.pack import Pack

ROOT = Path(__file__).resolve().parents[2]
MINI = ROOT / "engines" / "mini"
DATASET = ROOT / "calibration_data" / "evaluation"
UNIT = ROOT / "deploy" / "systemd" / "orin-rerank.service"

TOLERANCE = {Precision.FP32: 1e-3, Precision.FP16: 0.1}
"""Largest difference of a margin from the processor's in float32. Margins of the mini spread over about 10."""

Figures = dict[str, Any]


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096


def check_context(_: argparse.Namespace) -> Figures:
    """The primary context is active while the thread lives, current in no other thread, and gone afterwards."""
    library = ctypes.CDLL("libcuda.so.1")

    def active() -> bool:
        flags, state, device = ctypes.c_uint(), ctypes.c_int(), ctypes.c_int()
        assert library.cuDeviceGet(ctypes.byref(device), 0) == 0
        assert library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(state)) == 0
        return bool(state.value)

    def current() -> int | None:
        context = ctypes.c_void_p()
        assert library.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value

    assert library.cuInit(0) == 0
    assert not active()
    for _ in range(20):
        cuda = CudaThread()
        assert active()
        assert current() is None, "the context is current in a thread that is not the CUDA thread's"
        assert cuda.call(lambda _: current()) is not None
        cuda.close()
        assert not active(), "the primary context outlives its thread"
    cuda = CudaThread()
    info = cuda.info
    cuda.close()
    return {
        "gpu": info.name,
        "compute_capability": ".".join(map(str, info.compute_capability)),
        "driver_cuda": info.driver_version,
        "integrated": info.integrated,
        "opened_and_closed": 21,
    }


def check_trips(options: argparse.Namespace) -> Figures:
    """Round trips of 4 KiB through the pool's blocks, host to device and back, by two threads; nothing may grow."""
    figures: Figures = {}
    for kind, block_of in BLOCKS.items():
        cuda = CudaThread()
        block = block_of(1 << 20, cuda)
        streams = [cuda.stream() for _ in range(2)]
        free: list[int] = []
        resident: list[int] = []

        def work(slot: int, trips: int, block=block, cuda=cuda, streams=streams) -> int:
            source = block.host[slot << 18 :][:4096].view(np.int32)
            target = block.host[(slot << 18) + 65536 :][:4096].view(np.int32)
            a, b = block.address_of(source), block.address_of(target)

            def trip(driver: Driver, stream: DriverStream) -> None:
                block.enqueue_upload((source,), driver, stream)
                driver.copy_on_device(b, a, 4096, stream)
                block.enqueue_download((target,), driver, stream)

            wrong = 0
            for number in range(trips):
                source[:] = number
                cuda.run(streams[slot], trip)
                wrong += int(target[0] != number or target[-1] != number)
            return wrong

        with ThreadPoolExecutor(2) as threads:
            each = options.trips // 2 // 10
            wrong, started = 0, time.perf_counter()
            for _ in range(10):
                wrong += sum(threads.map(work, range(2), [each] * 2))
                free.append(cuda.call(lambda driver: driver.free_bytes()))
                resident.append(resident_bytes())
            seconds = time.perf_counter() - started
        assert wrong == 0, f"{wrong} round trips brought back something else"
        block.close()
        cuda.close()
        figures[kind] = {
            "trips": each * 20,
            "microseconds_each": round(seconds / (each * 20) * 1e6, 1),
            "device_growth_bytes": free[0] - free[-1],
            "resident_growth_bytes": resident[-1] - resident[0],
        }
        assert free[0] - free[-1] <= 0, "memory of the device grew"
        assert resident[-1] - resident[0] < 8 << 20, "memory of the host grew"
    return figures


def check_equality(options: argparse.Namespace) -> Figures:
    """The mini's margins on the GPU beside the processor's in float32, over the evaluation set."""
    processor = Served.on_processor(MINI, 12)
    pairs = pairs_of_bundle(processor, DATASET, options.queries)
    expected = processor.margins(pairs, threads=12)
    figures: Figures = {"pairs": len(pairs), "spread": round(float(expected.std()), 2)}
    for precision, dialect, kind in [
        (Precision.FP32, Dialect.FUSED, "copied"),
        (Precision.FP32, Dialect.PRIMITIVE, "copied"),
        (Precision.FP16, Dialect.FUSED, "copied"),
        (Precision.FP16, Dialect.FUSED, "mapped"),
        (Precision.FP16, Dialect.PRIMITIVE, "copied"),
    ]:
        name = f"{precision.value} {dialect.value} {kind}"
        try:
            model = Served.on_gpu(MINI, CudaThread(), kind=kind, precision=precision, dialect=dialect)
            on_cpu = assigned(model.engine._text), assigned(model.engine._vision)
            got = model.margins(pairs)
            again = model.margins(pairs)
            model.engine.close()
        except Exception as error:  # noqa: BLE001 - the other forms are checked all the same
            traceback.print_exc()
            figures[name] = {"failed": str(error)[:400]}
            continue
        off = np.abs(got - expected)
        figures[name] = {
            "largest": float(off.max()),
            "root_mean_square": float(np.sqrt((off**2).mean())),
            "p99": float(np.quantile(off, 0.99)),
            "run_to_run": float(np.abs(again - got).max()),
            "correlation": float(np.corrcoef(got, expected)[0, 1]),
            "operators": [{k: len(v) for k, v in part.items()} for part in on_cpu],
            "on_processor": [sorted(set(part.get("CPUExecutionProvider", []))) for part in on_cpu],
        }
        print(name, json.dumps(figures[name]), flush=True)
    processor.engine.close()
    failed = [
        name
        for name, value in figures.items()
        if isinstance(value, dict) and not value.get("largest", np.inf) <= TOLERANCE[Precision(name.split()[0])]
    ]
    assert not failed, f"{failed}: {json.dumps(figures)}"
    return figures


def check_overlap(options: argparse.Namespace) -> Figures:
    """Packs a second with one slot, two and four: on the mini, and on a decoder of a real model's widths."""
    figures: Figures = {}
    for kind in BLOCKS:
        models = {
            slots: Served.on_gpu(MINI, CudaThread(), kind=kind, slots=slots, dialect=options.dialect, remember=False)
            for slots in (1, 2, 4)
        }
        pairs = pairs_of_bundle(models[1], DATASET, options.queries)
        for tokens in (512, 2048):
            packs = packs_of(pairs, range(len(pairs)), tokens)
            figures[f"mini, {kind}, {tokens} tokens"] = compare_slots(models, packs, options.rounds)
        for model in models.values():
            model.engine.close()
    with tempfile.TemporaryDirectory() as folder:
        RandomDecoder.write(Path(folder), options.dialect)
        decoders = {slots: RandomDecoder.on_gpu(Path(folder), CudaThread(), slots, options.dialect) for slots in (1, 2)}
        for tokens in (512, 1024, 2048):
            figures[f"2B widths, 12 layers, copied, {tokens} tokens"] = compare_slots(
                decoders, RandomDecoder.packs(48, tokens), options.rounds
            )
        for decoder in decoders.values():
            decoder.engine.close()
    return figures


def compare_slots(models: Mapping[int, Served | RandomDecoder], packs: list[Pack], rounds: int) -> Figures:
    """Seconds for the packs by how many slots run them; medians of rounds that take turns, the first left out."""
    seconds: dict[int, list[float]] = {slots: [] for slots in models}
    for _ in range(rounds + 1):
        for slots, model in models.items():
            with ThreadPoolExecutor(slots) as threads:
                started = time.perf_counter()
                list(threads.map(model.runner.run, packs))
                seconds[slots].append(time.perf_counter() - started)
    times = {slots: statistics.median(values[1:]) for slots, values in seconds.items()}
    figures = {
        "packs": len(packs),
        **{f"packs_per_s_{slots}_slots": round(len(packs) / value, 1) for slots, value in times.items()},
        **{f"ratio_{slots}_to_1": round(times[1] / value, 2) for slots, value in times.items()},
    }
    print(figures, flush=True)
    return figures


def check_threads(options: argparse.Namespace) -> Figures:
    """16 threads at once, each pair in packs of other pairs every time: no error, and no margin that is another's."""
    figures: Figures = {}
    for kind in BLOCKS:
        model = Served.on_gpu(MINI, CudaThread(), kind=kind, slots=2, dialect=options.dialect)
        pairs = pairs_of_bundle(model, DATASET, options.queries)
        expected = model.margins(pairs)
        # What the packing alone changes: float16 sums in another order.
        alone = max(np.abs(model.margins(pairs, 700, seed=seed) - expected).max() for seed in range(4))
        limit = max(2 * alone, 1e-3)
        errors: list[str] = []
        scored = wrong = 0
        worst = 0.0
        lock = threading.Lock()

        def work(seed: int, model=model, pairs=pairs, expected=expected, limit=limit, errors=errors) -> None:
            nonlocal scored, wrong, worst
            try:
                off = np.abs(model.margins(pairs, 500 + 100 * (seed % 8), seed=seed) - expected)
            except Exception as error:  # noqa: BLE001 - counted
                errors.append(f"{type(error).__name__}: {error}"[:300])
                return
            with lock:
                scored += len(off)
                wrong += int((~(off <= limit)).sum())
                worst = max(worst, float(off.max()))

        started = time.perf_counter()
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(work, range(100, 100 + options.thread_rounds)))
        figures[kind] = {
            "scored": scored,
            "errors": len(errors),
            "wrong": wrong,
            "largest_difference": worst,
            "largest_difference_alone": float(alone),
            "pairs_per_s": round(scored / (time.perf_counter() - started)),
            "waits": model.engine.pool.waits,
            "high_water": model.engine.pool.high_water,
        }
        print(kind, figures[kind], errors[:2], flush=True)
        model.engine.close()
        assert not errors, figures[kind]
        assert not wrong, figures[kind]
    return figures


def check_served(_: argparse.Namespace) -> Figures:
    """The mini as every command loads it ranks the judged set on the GPU as it does on the processor."""
    reference, on_processor = rank_loaded(MINI, DATASET, DeviceChoice.CPU)
    check_chosen(on_processor, PROCESSOR)
    figures: Figures = {"cpu": {**on_processor, "documents_per_s": round(reference.documents_per_second)}}
    for device in (DeviceChoice.CUDA, DeviceChoice.AUTO):
        scored, chosen = rank_loaded(MINI, DATASET, device)
        check_chosen(chosen, GPU)
        ranking = check_ranking(reference.queries, scored.queries, GPU)
        figures[device.value] = {**chosen, "documents_per_s": round(scored.documents_per_second), **ranking}
        asked, daemon = rank_served(MINI, DATASET, device, clients=8)
        check_chosen(daemon["status"]["model"], GPU)
        figures[f"daemon, {device.value}"] = {**daemon, **check_ranking(reference.queries, asked, GPU)}
    return figures


def check_filtered(options: argparse.Namespace) -> Figures:
    """The daemon under its unit's system call filter, as a user without capabilities, gives the margins it gives free.

    Twice: with as much memory locked as it likes, as its unit allows, and with the 64 KiB that systemd once gave by
    default. One client asks: of several, requests come together by chance, and in float16 a picture's features depend
    a little on what it is encoded with.
    """
    free, daemon = rank_served(MINI, DATASET, options.device, clients=1)
    figures: Figures = {"free": daemon}
    calls = ("--unit", UNIT) if options.filter is None else ("--filter", options.filter)
    for memlock in (-1, 65536):
        confinement = Confinement(tuple(map(str, calls)), options.user, memlock)
        asked, confined = rank_served(MINI, DATASET, options.device, clients=1, confinement=confinement)
        chosen = [said["status"]["model"]["engine"] for said in (daemon, confined)]
        assert chosen[0] == chosen[1], chosen
        ranking = check_ranking(free, asked, dataclasses.replace(GPU, tolerance=TOLERANCE[Precision.FP32]))
        figures[f"{memlock} bytes may be locked"] = {**confined, **ranking}
    return figures


def check_lost(_: argparse.Namespace) -> Figures:
    """A GPU that is lost ends the process with its own exit code, whoever sees it first, and gives no margin."""
    figures: Figures = {}
    for seen_by in ("driver", "onnxruntime"):
        command = [sys.executable, str(Path(__file__).with_name("lost_device.py")), seen_by, str(MINI), str(DATASET)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        figures[seen_by] = {"exit_code": done.returncode, "said": done.stdout.splitlines()}
        print(seen_by, done.returncode, done.stdout, done.stderr[-1500:], flush=True)
    assert all(figure["exit_code"] == ExitCode.DEVICE_LOST for figure in figures.values()), figures
    return figures


def check_scratch(_: argparse.Namespace) -> Figures:
    """What engines of the 2B's and the 8B's widths take beside weights and buffers, and what the plan reckons."""
    from scratch import MODELS, measure_scratch  # the only one that needs torch

    figures: Figures = {}
    for name in MODELS:
        for pictures in (False, True):
            what = f"{name}, {'pictures' if pictures else 'texts'}"
            figures[what] = measure_scratch(name, pictures=pictures)
            print(what, figures[what], flush=True)
    overhead = overhead_bytes(EngineKind.ONNXRUNTIME_CUDA)  # for kernels that are loaded at the first run, too
    short = [what for what, figure in figures.items() if figure["then_many"] > figure["reckoned"] + overhead]
    assert not short, f"more is taken than planned: {short}: {figures}"
    return figures


CHECKS: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "context": check_context,
    "equality": check_equality,
    "threads": check_threads,
    "overlap": check_overlap,
    "served": check_served,
    "filtered": check_filtered,
    "lost": check_lost,
    "trips": check_trips,
    "scratch": check_scratch,
}


def main() -> int:
    """Runs the checks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--dialect", type=Dialect, default=Dialect.FUSED, help="of the float16 graphs")
    parser.add_argument("--trips", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--thread-rounds", type=int, default=64)
    parser.add_argument("--device", type=DeviceChoice, default=DeviceChoice.CUDA, help="of the filtered daemon")
    parser.add_argument("--filter", type=Path, help="its filter, as filtered.py writes one; else the unit's is made")
    parser.add_argument("--user", default="nobody", help="that the filtered daemon runs as")
    options = parser.parse_args()
    figures: Figures = {"onnxruntime": ort.__version__}
    failed = []
    for name in options.only:
        started = time.perf_counter()
        try:
            figures[name] = CHECKS[name](options)
        except Exception as error:  # noqa: BLE001 - every check is to be seen
            traceback.print_exc()
            figures[name] = {"failed": f"{type(error).__name__}: {error}"[:2000]}
            failed.append(name)
        print(f"== {name}: {time.perf_counter() - started:.1f} s {json.dumps(figures[name])}", flush=True)
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print("failed:", ", ".join(failed) or "nothing")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

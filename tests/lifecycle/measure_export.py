"""Exports a model at its full size, with random weights: seconds, memory, and whether it is the same twice.

    make export-8b
    python tests/lifecycle/measure_export.py [--model vl-8b] [--folder /tmp]

The first export runs through. The second is killed half-way and run again. Takes room for the checkpoint and one
bundle: 35 GB for the 8B.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.full_size import PUBLISHED, shapes_of, write_full_size
from orin_rerank.engines.bundle import WEIGHTS_FILE, Bundle
from orin_rerank.lifecycle.staging import STAGING_FOLDER

COMMAND = (sys.executable, "-m", "orin_rerank.cli.main", "export")


def export(checkpoint: Path, out: Path, kill_at: int | None = None) -> tuple[float, float, int]:
    """Runs the command.

    Returns:
        Its seconds, the processor's seconds, and its largest resident size in bytes, mapped pages of files included.
    """
    begin = time.monotonic()
    process = subprocess.Popen([*COMMAND, str(checkpoint), str(out)])
    staged = out / STAGING_FOLDER / WEIGHTS_FILE
    while kill_at is not None and not (staged.exists() and staged.stat().st_size >= kill_at):
        time.sleep(0.05)
        assert process.poll() is None, "it ended before it could be killed"
    if kill_at is not None:
        process.send_signal(signal.SIGKILL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == (0 if kill_at is None else -signal.SIGKILL)
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=PUBLISHED, default="vl-8b")
    parser.add_argument("--folder", type=Path, help="where to write; its disk is what is measured")
    options = parser.parse_args()
    architecture = PUBLISHED[options.model]
    size = sum(2 * math.prod(shape) for shape in shapes_of(architecture).values())
    with tempfile.TemporaryDirectory(prefix="export-", dir=options.folder) as name:
        checkpoint, out = Path(name) / options.model, Path(name) / "bundle"
        free = shutil.disk_usage(name).free
        assert free > 2.1 * size, f"{2.1 * size / 1e9:.0f} GB are needed, {free / 1e9:.0f} GB are free"
        begin = time.monotonic()
        write_full_size(checkpoint, architecture)
        os.sync()
        print(f"{options.model}: a checkpoint of {size / 1e9:.2f} GB, written in {time.monotonic() - begin:.0f} s")
        seconds, busy, peak = export(checkpoint, out)
        first = Bundle.open(out)
        weights = first.manifest.files[WEIGHTS_FILE].bytes
        rate = f"{weights / 1e6 / seconds:.0f} MB/s, {busy:.1f} s of a processor"
        print(f"exported in {seconds:.1f} s, {rate}, {peak / 1e6:.0f} MB resident at most")
        total = sum(entry.bytes for entry in first.manifest.files.values())
        print(f"a bundle of {total / 1e9:.3f} GB, {(total - weights) / 1e6:.1f} MB of it not weights")
        shutil.rmtree(out)
        before, _, _ = export(checkpoint, out, kill_at=weights // 2)
        kept = (out / STAGING_FOLDER / WEIGHTS_FILE).stat().st_size
        after, _, peak = export(checkpoint, out)
        print(f"killed after {before:.1f} s and {kept / 1e9:.2f} GB, ended in {after:.1f} s more, {peak / 1e6:.0f} MB")
        begin = time.monotonic()
        second = Bundle.open(out)
        second.verify()
        print(f"verified in {time.monotonic() - begin:.1f} s")
        assert second.digest == first.digest, "the two exports differ"
        print(f"the same both times: {first.digest}")


if __name__ == "__main__":
    main()

# ruff: noqa: PERF203, T201
"""A process whose GPU is lost: a kernel writes to an address that nobody has, and the engine is asked again.

Run by `checks.py`; leaves with the exit code that the daemon leaves with.
"""

from __future__ import annotations

import sys
from pathlib import Path

from parts import Served, pairs_of_bundle

from orin_rerank.cli.exit_codes import exit_code_of
from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.cuda_driver import Driver, DriverStream
from orin_rerank.errors import DeviceLostError

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry stray() {
    .reg .u64 %a;
    .reg .u32 %v;
    mov.u64 %a, 8;
    mov.u32 %v, 1;
    st.global.u32 [%a], %v;
    ret;
}
"""


def stray(_: Driver, stream: DriverStream) -> None:
    """Enqueues a kernel that writes to address 8."""
    import pycuda.driver

    module = pycuda.driver.module_from_buffer(PTX)
    module.get_function("stray")(block=(1, 1, 1), grid=(1, 1), stream=stream.raw)


def main() -> int:
    """Loses the GPU in the way that the one argument names: seen by `driver` calls, or by `onnxruntime` first."""
    seen_by = sys.argv[1]
    cuda = CudaThread()
    model = Served.on_gpu(Path(sys.argv[2]), cuda, kind="mapped" if seen_by == "onnxruntime" else "copied")
    pairs = pairs_of_bundle(model, Path(sys.argv[3]), 8)
    before = model.margins(pairs)
    stream = cuda.stream()
    if seen_by == "driver":
        try:
            cuda.run(stream, stray)
        except DeviceLostError:
            print("the CUDA thread: DeviceLostError")
    else:
        # Enqueued only: the first to wait for the device is ONNX Runtime.
        cuda.call(lambda driver: stray(driver, driver.stream()))
    for attempt in range(2):
        try:
            after = model.margins(pairs)
        except DeviceLostError as error:
            print(f"run {attempt}: DeviceLostError: {str(error)[:160]}")
            last = error
        else:
            print(f"run {attempt}: margins, {abs(after - before).max()} off")
            return 0
    try:
        model.engine.close()
    except DeviceLostError:
        print("closed")
    return exit_code_of(last)


if __name__ == "__main__":
    sys.exit(main())

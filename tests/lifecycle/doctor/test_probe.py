"""What of a GPU's libraries can be used, found out in another process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orin_rerank.engines.cuda_driver import DeviceInfo
from orin_rerank.lifecycle.doctor.probe import probe_machine

NVIDIA = Path(__file__).parents[2] / "cli" / "fake_nvidia"


def with_modules(monkeypatch: pytest.MonkeyPatch, folder: Path, **modules: str) -> None:
    """Puts modules before those that are installed, for the process that is started."""
    for name, text in modules.items():
        package = folder / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_all_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(NVIDIA))
    found = probe_machine()
    assert found.tensorrt == "tensorrt 10.3.0"
    assert isinstance(found.gpu, DeviceInfo)
    assert (found.gpu.name, found.gpu.compute_capability) == ("Orin", (8, 7))
    assert found.onnxruntime is not None
    assert "CPUExecutionProvider" in found.providers
    assert (found.problem, found.gpu_problem, found.tensorrt_problem) == (None, None, None)
    closed = probe_machine(open_gpu=False)
    assert (closed.gpu, closed.tensorrt, closed.pycuda is None) == (None, "tensorrt 10.3.0", False)


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(NVIDIA))
    monkeypatch.setenv("FAKE_GPU", "none")
    found = probe_machine()
    assert found.gpu is None
    assert found.gpu_problem


def test_bindings_whose_libraries_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = "raise ImportError('libnvinfer.so.10: cannot open shared object file')"
    with_modules(monkeypatch, tmp_path, tensorrt=broken, pycuda="")
    found = probe_machine()
    assert found.tensorrt is None
    assert found.tensorrt_problem == "tensorrt: cannot be imported: libnvinfer.so.10: cannot open shared object file"
    assert found.gpu_problem is not None
    assert found.problem is None


def test_a_driver_that_crashes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_modules(monkeypatch, tmp_path, tensorrt="import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    found = probe_machine()
    assert found.problem == "the process that tried the GPU's libraries ended by signal 11"
    assert found.onnxruntime is not None  # what was found before stays


def test_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_modules(monkeypatch, tmp_path, tensorrt="import time; time.sleep(1000)")
    started = time.monotonic()
    found = probe_machine(timeout_s=4)
    assert time.monotonic() - started < 20
    assert found.problem == "the process that tried the GPU's libraries did not end within 4 s"


def test_what_libraries_print_is_not_taken_for_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_modules(
        monkeypatch,
        tmp_path,
        tensorrt="print('{}'); __version__ = '10.3.0'\nclass NetworkDefinitionCreationFlag: STRONGLY_TYPED = 1",
    )
    found = probe_machine(open_gpu=False)
    assert (found.problem, found.tensorrt) == (None, "tensorrt 10.3.0")


def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    found = probe_machine()
    assert found.problem == "the process that tried the GPU's libraries could not be started: No such file or directory"
    assert found.onnxruntime is None

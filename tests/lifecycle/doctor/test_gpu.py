"""Checks of device nodes, who may open them, and libraries."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fakes.board import NANO_8_SUPER, NX_16, BoardSpec, make_pc, power_gpu_on
from lifecycle.doctor.places import APP, WITH_GPU, board, context_of, said
from orin_rerank.engines.settings import DeviceChoice, EngineSettings
from orin_rerank.lifecycle.doctor.accounts import User
from orin_rerank.lifecycle.doctor.finding import Verdict
from orin_rerank.lifecycle.doctor.gpu import (
    check_access,
    check_cuda,
    check_nodes,
    check_onnxruntime,
    check_others,
    check_tensorrt,
)
from orin_rerank.lifecycle.doctor.probe import MachineProbe


def test_nodes_are_there(tmp_path: Path) -> None:
    assert said(check_nodes(board(tmp_path), context_of(tmp_path))) == (Verdict.OK, "3 are there")


def test_nodes_of_a_newer_release(tmp_path: Path) -> None:
    paths = board(tmp_path, nodes=False)
    for name in ("/dev/nvmap", "/dev/nvgpu/igpu0/power", "/dev/nvgpu/igpu0/ctrl"):
        paths.at(name).parent.mkdir(parents=True, exist_ok=True)
        paths.at(name).touch()
    assert said(check_nodes(paths, context_of(tmp_path))) == (Verdict.OK, "3 are there")


def test_a_gpu_that_could_not_be_started(tmp_path: Path) -> None:
    """Its driver is loaded, and found no firmware; the display's nodes are there all the same."""
    paths = board(tmp_path, nodes=False)
    power_gpu_on(paths, fails=True)
    finding = check_nodes(paths, context_of(tmp_path))
    assert said(finding) == (
        Verdict.FAIL,
        "only /dev/nvhost-power-gpu, /dev/nvgpu/igpu0/power: the driver is loaded, but could not start the GPU",
    )
    assert finding is not None
    assert finding.command == "sudo dmesg | grep -iE 'nvgpu|firmware'"
    power_gpu_on(paths)
    assert said(check_nodes(paths, context_of(tmp_path))) == (Verdict.OK, "12 are there")


def test_nodes_that_cuda_does_not_need_may_be_roots_alone(tmp_path: Path) -> None:
    paths = board(tmp_path, nodes=False)
    power_gpu_on(paths)
    gid = paths.at("/dev/nvmap").stat().st_gid
    member = context_of(tmp_path, daemon_user=User("app", 12345, frozenset((12345, gid))))
    assert said(check_access(paths, member)) == (Verdict.OK, "app may open them")
    paths.at("/dev/nvgpu/igpu0/power").chmod(0o600)
    assert said(check_access(paths, member)) == (Verdict.FAIL, "app may not open /dev/nvgpu/igpu0/power")


def test_a_driver_that_is_not_up(tmp_path: Path) -> None:
    paths, context = board(tmp_path, nodes=False), context_of(tmp_path)
    assert said(check_nodes(paths, context)) == (
        Verdict.FAIL,
        "there is no /dev/nvmap and no /dev/nvhost-gpu or /dev/nvgpu/igpu0: the driver is not up",
    )
    assert check_access(paths, context) is None
    paths.at("/dev").mkdir()
    paths.at("/dev/nvmap").touch()
    assert said(check_nodes(paths, context))[1].startswith("there is no /dev/nvhost-gpu or")


def test_a_user_outside_of_the_group(tmp_path: Path) -> None:
    paths = board(tmp_path)
    gid = paths.at("/dev/nvmap").stat().st_gid
    context = context_of(tmp_path, daemon_user=APP, group_name=lambda _: "video")
    finding = check_access(paths, context)
    assert said(finding) == (
        Verdict.FAIL,
        "app may not open /dev/nvmap, /dev/nvhost-ctrl-gpu, /dev/nvhost-gpu: not in the group video",
    )
    assert finding is not None
    assert finding.command == "sudo usermod -aG video app"
    member = dataclasses.replace(context, daemon_user=User("app", 12345, frozenset((12345, gid))))
    assert said(check_access(paths, member)) == (Verdict.OK, "app may open them")
    paths.at("/dev/nvmap").chmod(0o600)
    finding = check_access(paths, member)
    assert finding is not None
    assert (finding.verdict, finding.command) == (Verdict.FAIL, None)


@pytest.mark.parametrize(
    ("spec", "installed", "verdict"),
    [
        (NX_16, "tensorrt 10.3.0", Verdict.OK),
        (NX_16, "tensorrt 10.3.0.30", Verdict.OK),
        (NX_16, "tensorrt 10.30.0", Verdict.WARN),
        (NX_16, "tensorrt 8.6.2", Verdict.WARN),
        (NANO_8_SUPER, "tensorrt 10.16.2", Verdict.OK),
        (NANO_8_SUPER, "tensorrt 11.4.1", Verdict.OK),
        (NANO_8_SUPER, "tensorrt 10.3.0", Verdict.WARN),
        (NX_16, None, Verdict.FAIL),
    ],
)
def test_tensorrt_is_that_of_the_jetpack(
    tmp_path: Path, spec: BoardSpec, installed: str | None, verdict: Verdict
) -> None:
    context = context_of(tmp_path, probe=MachineProbe(tensorrt=installed))
    assert said(check_tensorrt(board(tmp_path, spec), context))[0] is verdict


def test_tensorrt_whose_libraries_are_missing(tmp_path: Path) -> None:
    context = context_of(
        tmp_path, probe=MachineProbe(tensorrt_problem="tensorrt: cannot be imported: libnvinfer.so.10")
    )
    assert said(check_tensorrt(board(tmp_path), context))[0] is Verdict.FAIL
    assert said(check_tensorrt(make_pc(tmp_path / "pc"), context))[0] is Verdict.WARN


@pytest.mark.parametrize(
    ("probe", "text", "command"),
    [
        (
            MachineProbe(gpu_problem="pycuda is not installed"),
            "pycuda is not installed",
            'pip install "orin-rerank[jetson]"',
        ),
        (MachineProbe(pycuda="2026.1", gpu_problem="no CUDA-capable device"), "no CUDA-capable device", None),
        (MachineProbe(problem="the process ended by signal 11"), "the process ended by signal 11", None),
    ],
)
def test_a_gpu_that_cannot_be_opened(tmp_path: Path, probe: MachineProbe, text: str, command: str | None) -> None:
    finding = check_cuda(board(tmp_path), context_of(tmp_path, probe=probe))
    assert finding is not None
    assert finding.verdict is Verdict.FAIL
    assert finding.text.startswith(text)
    assert finding.command == command


def test_a_process_that_could_not_be_started_says_nothing_of_the_driver(tmp_path: Path) -> None:
    probe = MachineProbe(problem="could not be started: Cannot allocate memory", started=False)
    finding = check_cuda(board(tmp_path), context_of(tmp_path, probe=probe))
    assert finding is not None
    assert finding.remedy == "the machine is short of memory or processes, or forbids them"


def test_pycuda_goes_where_the_package_looks_for_it(tmp_path: Path) -> None:
    paths = board(tmp_path)
    paths.at("/usr/lib/orin-rerank/site-packages").mkdir(parents=True)
    finding = check_cuda(paths, context_of(tmp_path, probe=MachineProbe(gpu_problem="pycuda is not installed")))
    assert finding is not None
    assert finding.command == (
        "sudo CUDA_ROOT=/usr/local/cuda python3 -m pip install --target /usr/local/lib/orin-rerank/site-packages pycuda"
    )


def test_a_gpu_that_nobody_wants(tmp_path: Path) -> None:
    probe = MachineProbe(gpu_problem="pycuda is not installed")
    processor = context_of(tmp_path, probe=probe, engine=EngineSettings(device=DeviceChoice.CPU))
    assert check_cuda(board(tmp_path), processor) is None
    assert check_cuda(make_pc(tmp_path / "pc"), context_of(tmp_path, probe=probe)) is None


def test_what_is_there(tmp_path: Path) -> None:
    paths, context = board(tmp_path), context_of(tmp_path)
    assert said(check_cuda(paths, context)) == (Verdict.OK, "Orin, compute capability 8.7, CUDA 12.6")
    assert said(check_onnxruntime(paths, context)) == (Verdict.OK, "1.23.0, computes on CPU")
    without = context_of(tmp_path, probe=dataclasses.replace(WITH_GPU, onnxruntime=None))
    assert said(check_onnxruntime(paths, without)) == (Verdict.FAIL, "cannot be imported")


def test_a_pc(tmp_path: Path) -> None:
    paths, none = make_pc(tmp_path / "pc"), MachineProbe()
    assert check_nodes(paths, context_of(tmp_path, probe=none)) is None
    assert check_tensorrt(paths, context_of(tmp_path, probe=none)) is None
    wanted = context_of(tmp_path, probe=none, engine=EngineSettings(device=DeviceChoice.CUDA))
    assert said(check_nodes(paths, wanted))[0] is Verdict.FAIL
    node = paths.at("/dev/nvidia0")
    node.parent.mkdir()
    node.touch()
    assert said(check_nodes(paths, wanted)) == (Verdict.OK, "1 are there, of a GPU of its own")


def test_other_programs_on_the_gpu(tmp_path: Path) -> None:
    paths = board(tmp_path)
    for pid, name, command, opened in (
        (10, "Xorg", "/usr/lib/xorg/Xorg", "/dev/nvmap"),
        (11, "bash", "bash", "/dev/pts/0"),
        (12, "python3", "/usr/bin/python3\0/usr/bin/orin-rerank\0serve", "/dev/nvhost-gpu"),
        (13, "ollama", "ollama\0serve", "/dev/nvgpu/igpu0/ctrl"),
    ):
        folder = paths.at(f"/proc/{pid}")
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_text(command)
        (folder / "fd/0").symlink_to("/dev/null")
        (folder / "fd/7").symlink_to(opened)
    paths.at("/proc/14").mkdir()  # has ended meanwhile
    assert said(check_others(paths, context_of(tmp_path))) == (Verdict.OK, "also on the GPU: Xorg, ollama")
    assert check_others(make_pc(tmp_path / "pc"), context_of(tmp_path)) is None

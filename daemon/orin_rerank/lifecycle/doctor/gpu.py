"""The GPU: its device nodes, who may open them, and the libraries that compute on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orin_rerank.board.gpu_nodes import discrete_nodes, is_gpu_node, jetson_nodes
from orin_rerank.board.module import identify_board
from orin_rerank.engines.settings import DeviceChoice
from orin_rerank.lifecycle.doctor.finding import Check, Finding, Verdict, fail, ok, warn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.doctor.context import Context

__all__ = ["CHECKS"]

_SUBJECT: Final = "GPU"

_TENSORRT: Final = {"6.1 or 6.2": ("10.3",), "6.2": ("10.3",), "7.2": ("10.16", "11.4")}
"""What comes with a JetPack."""

_REMOTE: Final = ("AzureExecutionProvider",)
"""Is in every build of ONNX Runtime, and never used."""

_PACKAGED: Final = "/usr/lib/orin-rerank/site-packages"
_ADDED: Final = "/usr/local/lib/orin-rerank/site-packages"

_READ_AND_WRITE: Final = 6


def check_nodes(paths: BoardPaths, context: Context) -> Finding | None:
    """Whether the GPU's driver has made its nodes."""
    if identify_board(paths).is_jetson:
        return _jetson_nodes(paths)
    nodes = discrete_nodes(paths)
    if nodes:
        return ok(f"{len(nodes)} are there, of a GPU of its own")
    if context.engine.device is DeviceChoice.CUDA:
        return fail("there is none of an NVIDIA GPU, which the settings ask for", 'set [engine] device = "auto"')
    return None


def _jetson_nodes(paths: BoardPaths) -> Finding:
    nodes = jetson_nodes(paths)
    if nodes.memory is not None and nodes.gpu:
        return ok(f"{len(nodes.all)} are there")
    if nodes.memory is not None and nodes.power:
        return fail(
            f"only {_shown(paths, nodes.power)}: the driver is loaded, but could not start the GPU",
            "the kernel's log says why; where it misses firmware, see the kernel's parameter firmware_class.path",
            "sudo dmesg | grep -iE 'nvgpu|firmware'",
        )
    missing = ([] if nodes.memory else ["/dev/nvmap"]) + ([] if nodes.gpu else ["/dev/nvhost-gpu or /dev/nvgpu/igpu0"])
    return fail(
        f"there is no {' and no '.join(missing)}: the driver is not up",
        "the kernel's log says why; a system that was updated in part has no driver for its kernel",
        "sudo dmesg | grep -iE 'nvgpu|nvmap'",
    )


def check_access(paths: BoardPaths, context: Context) -> Finding | None:
    """Whether the daemon's user may open them."""
    nodes = _nodes(paths)
    if not nodes:
        return None
    user = context.daemon_user
    shut = [(node, status) for node in nodes if not user.may(_READ_AND_WRITE, status := node.stat())]
    if not shut:
        return ok(f"{user.name} may open them")
    names = _shown(paths, [node for node, _ in shut[:3]])
    more = f" and {len(shut) - 3} more" if len(shut) > 3 else ""
    groups = sorted({context.group_name(s.st_gid) for _, s in shut if (s.st_mode >> 3) & _READ_AND_WRITE == 6})
    groups = [group for group in groups if group != "root"]
    if not groups:
        return fail(f"{user.name} may not open {names}{more}", "the rules of udev make these nodes for root alone")
    return fail(
        f"{user.name} may not open {names}{more}: not in the group {' and '.join(groups)}",
        "then restart the daemon; a person has to log in again",
        f"sudo usermod -aG {','.join(groups)} {user.name}",
    )


def check_tensorrt(paths: BoardPaths, context: Context) -> Finding | None:
    """Whether there is TensorRT, and that of the JetPack."""
    board, probe = identify_board(paths), context.probe
    needed = board.is_jetson and context.engine.device is not DeviceChoice.CPU
    if probe.tensorrt_problem is not None:
        return Finding(
            Verdict.FAIL if needed else Verdict.WARN,
            probe.tensorrt_problem,
            "its libraries do not fit its bindings",
            "dpkg -l | grep -E 'libnvinfer|tensorrt'",
        )
    if probe.tensorrt is None:
        if not needed:
            return None
        return fail(
            "not installed for this Python, so the processor computes",
            "it comes with JetPack",
            "sudo apt install python3-libnvinfer",
        )
    expected = _TENSORRT.get((board.release and board.release.jetpack) or "")
    version = probe.tensorrt.rpartition(" ")[2]
    if expected is not None and not any(version == one or version.startswith(f"{one}.") for one in expected):
        return warn(
            f"{probe.tensorrt}, but this JetPack has {' or '.join(expected)}",
            "another one was installed beside it, or the system was updated in part",
            "dpkg -l | grep -E 'libnvinfer|nvidia-jetpack'",
        )
    return ok(probe.tensorrt)


def check_cuda(paths: BoardPaths, context: Context) -> Finding | None:
    """Whether the GPU can be opened."""
    probe = context.probe
    jetson = identify_board(paths).is_jetson
    wanted = context.engine.device is not DeviceChoice.CPU and (jetson or bool(discrete_nodes(paths)))
    if probe.problem is not None:
        if not probe.started:
            return fail(probe.problem, "the machine is short of memory or processes, or forbids them")
        return fail(probe.problem, "the driver hangs or crashes: see the kernel's log, and restart the board")
    if probe.gpu is not None:
        capability = ".".join(map(str, probe.gpu.compute_capability))
        return ok(f"{probe.gpu.name}, compute capability {capability}, CUDA {_cuda(probe.gpu.driver_version)}")
    if probe.gpu_problem is None or not wanted:
        return None
    if probe.pycuda is None and probe.gpu_problem.startswith("pycuda is not"):
        return fail(
            "pycuda is not installed, so the processor computes",
            "it is compiled, with python3-pip, python3-dev, g++ and cuda-toolkit",
            _how_to_get_pycuda(paths, jetson=jetson),
        )
    return fail(probe.gpu_problem, "what `device nodes` and `access` say comes first; else restart the board")


def check_others(paths: BoardPaths, _: Context) -> Finding | None:
    """Which other programs have the GPU open, which takes memory and time from the daemon; root sees all of them."""
    found = set()
    for folder in paths.glob("/proc/[0-9]*"):
        command = paths.text(folder / "cmdline") or ""
        if "orin-rerank" not in command and _has_open(folder / "fd"):
            found.add(paths.text(folder / "comm") or folder.name)
    return ok(f"also on the GPU: {', '.join(sorted(found))}") if found else None


def _has_open(descriptors: Path) -> bool:
    """Whether a process has a node of the GPU open; what may not be looked at, or has ended, has none."""
    try:
        return any(is_gpu_node(str(one.readlink())) for one in descriptors.iterdir())
    except OSError:
        return False


def check_onnxruntime(_: BoardPaths, context: Context) -> Finding:
    """Whether there is ONNX Runtime, which checks every model and computes where TensorRT does not."""
    probe = context.probe
    if probe.onnxruntime is None:
        if probe.problem is not None:
            return warn("not known")
        return fail("cannot be imported", "install this program again", 'python3 -c "import onnxruntime"')
    where = [name.removesuffix("ExecutionProvider") for name in probe.providers if name not in _REMOTE]
    return ok(f"{probe.onnxruntime}, computes on {', '.join(where)}")


def _nodes(paths: BoardPaths) -> tuple[Path, ...]:
    """What CUDA opens, as far as it is there."""
    return jetson_nodes(paths).all if identify_board(paths).is_jetson else discrete_nodes(paths)


def _shown(paths: BoardPaths, nodes: Sequence[Path]) -> str:
    return ", ".join(f"/{node.relative_to(paths.root)}" for node in nodes)


def _how_to_get_pycuda(paths: BoardPaths, *, jetson: bool) -> str:
    if paths.at(_PACKAGED).is_dir():  # the .deb looks here for what it cannot bring
        return f"sudo CUDA_ROOT=/usr/local/cuda python3 -m pip install --target {_ADDED} pycuda"
    return f'pip install "orin-rerank[{"jetson" if jetson else "cuda"}]"'


def _cuda(version: int) -> str:
    """Of 12060, `12.6`."""
    return f"{version // 1000}.{version % 1000 // 10}"


CHECKS: Final = (
    Check(_SUBJECT, "device nodes", check_nodes),
    Check(_SUBJECT, "access", check_access),
    Check(_SUBJECT, "other programs", check_others),
    Check(_SUBJECT, "CUDA", check_cuda),
    Check(_SUBJECT, "TensorRT", check_tensorrt),
    Check(_SUBJECT, "ONNX Runtime", check_onnxruntime),
)

"""The GPU's device nodes: what CUDA opens, by what names, and when they are there.

On a Jetson the driver is nvgpu. When it is loaded it makes the node `power`, and when the GPU is powered on for the
first time, by nvpmodel at boot or by CUDA itself, all the others; where the GPU's firmware cannot be loaded, `power`
stays alone (`os/linux/ioctl.c` and `module.c` of linux-nvgpu; NVIDIA-AI-IOT/jetson-ai-lab#427). Each node has two
names, an old one such as /dev/nvhost-ctrl-gpu, and /dev/nvgpu/igpu0/ctrl. /dev/nvidia0 and /dev/nvidiactl are there,
too, but belong to the display: they say nothing about the GPU.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths

__all__ = ["NODES", "JetsonNodes", "NodeKind", "discrete_nodes", "is_gpu_node", "jetson_nodes"]


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes of one kind.

    Attributes:
        pattern: Matches their paths.
        regions: What the kernel may call their numbers in /proc/devices, which is what systemd's `DeviceAllow=char-`
            takes. Empty for nodes that share their number with others (`misc`), and so are allowed by their path.
    """

    pattern: str
    regions: tuple[str, ...] = ()


_NVGPU: Final = ("17000000.gpu", "17000000.ga10b")
"""The driver takes the name of the device, twice: for `power`, and for the others. The second is JetPack 5's."""

_MEMORY: Final = NodeKind("/dev/nvmap")
_GPU: Final = (NodeKind("/dev/nvhost-*gpu", _NVGPU), NodeKind("/dev/nvgpu/igpu[0-9]*/*", _NVGPU))
_POWER: Final = "power"
_CUDA: Final = ("as", "channel", "ctrl", "tsg")
"""Nodes that CUDA opens; the others are for debuggers, profilers and schedulers, and may be root's alone."""
_OLD_NAME: Final = re.compile(r"nvhost-(?:(.*)-)?gpu")
_FENCES: Final = NodeKind("/dev/host1x-fence", ("host1x-fence",))
_DISCRETE: Final = (
    NodeKind("/dev/nvidia[0-9]*", ("nvidia", "nvidia-frontend")),
    NodeKind("/dev/nvidiactl", ("nvidia", "nvidiactl", "nvidia-frontend")),
    NodeKind("/dev/nvidia-uvm", ("nvidia-uvm",)),
)
_RENDER: Final = NodeKind("/dev/dri/renderD[0-9]*", ("drm",))

NODES: Final = (_MEMORY, *_GPU, _FENCES, *_DISCRETE, _RENDER)
"""All that CUDA may open, on a Jetson or elsewhere: what a service that computes has to be allowed."""


@dataclass(frozen=True, slots=True)
class JetsonNodes:
    """A Jetson's nodes, as far as they are there.

    Attributes:
        memory: Of the driver for memory, without which the GPU's is of no use; None if it is not there.
        power: Of the GPU's driver, once it is loaded.
        gpu: What CUDA computes through, once the GPU has been powered on.
        fences: Through which the processor waits for the GPU; not every release has them.
    """

    memory: Path | None
    power: tuple[Path, ...]
    gpu: tuple[Path, ...]
    fences: tuple[Path, ...]

    @property
    def all(self) -> tuple[Path, ...]:
        """Every one."""
        return (*([] if self.memory is None else [self.memory]), *self.power, *self.gpu, *self.fences)


def jetson_nodes(paths: BoardPaths) -> JetsonNodes:
    """Looks for the nodes of a Jetson."""
    found = _found(paths, *_GPU)
    return JetsonNodes(
        memory=next(iter(_found(paths, _MEMORY)), None),
        power=tuple(node for node in found if _purpose(node) == _POWER),
        gpu=tuple(node for node in found if _purpose(node) in _CUDA),
        fences=_found(paths, _FENCES),
    )


def discrete_nodes(paths: BoardPaths) -> tuple[Path, ...]:
    """Nodes of GPUs with memory of their own, on other machines than a Jetson."""
    return _found(paths, *_DISCRETE)


def is_gpu_node(path: str) -> bool:
    """Whether a path is that of a node through which a GPU is used."""
    return any(fnmatch.fnmatchcase(path, kind.pattern) for kind in NODES if kind is not _RENDER)


def _purpose(node: Path) -> str:
    """What a node of the GPU is for, by the newer of its names."""
    old = _OLD_NAME.fullmatch(node.name)
    return node.name if old is None else old[1] or "channel"


def _found(paths: BoardPaths, *kinds: NodeKind) -> tuple[Path, ...]:
    return tuple(node for kind in kinds for node in paths.glob(kind.pattern) if not node.is_dir())

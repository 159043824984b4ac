"""The GPU's device nodes: when a GPU is on, and whether the units let a service open what CUDA opens."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest

from fakes.board import NX_16, make_board, make_pc, power_gpu_on
from orin_rerank.board.gpu_nodes import NODES, NodeKind, discrete_nodes, is_gpu_node, jetson_nodes
from orin_rerank.board.paths import BoardPaths

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


def names(paths: BoardPaths, nodes: tuple[Path, ...]) -> list[str]:
    return [str(node.relative_to(paths.root / "dev")) for node in nodes]


def allowed(unit: str) -> list[str]:
    """What a unit's `DeviceAllow=` lines name."""
    lines = (UNITS / unit).read_text(encoding="utf-8").splitlines()
    return [line.partition("=")[2].split()[0] for line in lines if line.startswith("DeviceAllow=")]


def covers(specifiers: list[str], kind: NodeKind) -> bool:
    """Whether all nodes of a kind are allowed, whatever the kernel calls their numbers; as systemd matches them."""
    if not kind.regions:
        return kind.pattern in specifiers
    globs = [one.removeprefix("char-") for one in specifiers if one.startswith("char-")]
    return all(any(fnmatch.fnmatchcase(region, glob) for glob in globs) for region in kind.regions)


@pytest.mark.parametrize("kind", NODES, ids=lambda kind: kind.pattern)
def test_the_daemon_may_open_what_cuda_opens(kind: NodeKind) -> None:
    assert covers(allowed("orin-rerank.service"), kind)


@pytest.mark.parametrize("unit", ["orin-rerank-board.service", "orin-rerank-board-again.service"])
def test_the_root_services_may_open_no_more_than_a_jetsons(unit: str) -> None:
    specifiers = allowed(unit)
    assert set(specifiers) < set(allowed("orin-rerank.service"))
    assert [kind.pattern for kind in NODES if covers(specifiers, kind)] == [
        "/dev/nvmap",
        "/dev/nvhost-*gpu",
        "/dev/nvgpu/igpu[0-9]*/*",
        "/dev/host1x-fence",
    ]


def test_coverage_is_no_matter_of_course() -> None:
    assert not covers(["char-17000000.gpu"], NODES[1]), "another release's name is missing"
    assert not covers(["char-nvmap"], NODES[0]), "a misc device has no region of its own"


def test_a_gpu_that_is_on(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NX_16)
    power_gpu_on(paths)
    nodes = jetson_nodes(paths)
    assert nodes.memory == paths.at("/dev/nvmap")
    assert names(paths, nodes.power) == ["nvhost-power-gpu", "nvgpu/igpu0/power"]
    assert names(paths, nodes.gpu) == [
        *("nvhost-as-gpu", "nvhost-ctrl-gpu", "nvhost-gpu", "nvhost-tsg-gpu"),
        *("nvgpu/igpu0/as", "nvgpu/igpu0/channel", "nvgpu/igpu0/ctrl", "nvgpu/igpu0/tsg"),
    ]
    assert names(paths, nodes.fences) == ["host1x-fence"]
    assert len(nodes.all) == 12


def test_a_gpu_that_could_not_be_powered_on(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NX_16)
    power_gpu_on(paths, fails=True)
    nodes = jetson_nodes(paths)
    assert len(nodes.power) == 2
    assert nodes.gpu == (), "neither the display's nodes nor those for power stand for it"


def test_a_board_without_any(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NX_16)
    assert jetson_nodes(paths).all == ()


def test_a_discrete_gpu(tmp_path: Path) -> None:
    paths = make_pc(tmp_path)
    for name in ("nvidia0", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia-caps/nvidia-cap1"):
        paths.at(f"/dev/{name}").parent.mkdir(parents=True, exist_ok=True)
        paths.at(f"/dev/{name}").touch()
    assert names(paths, discrete_nodes(paths)) == ["nvidia0", "nvidia10", "nvidiactl", "nvidia-uvm"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/dev/nvmap", True),
        ("/dev/nvhost-gpu", True),
        ("/dev/nvgpu/igpu0/ctrl", True),
        ("/dev/nvidia0", True),
        ("/dev/nvhost-vic", False),
        ("/dev/dri/renderD128", False),
        ("/dev/null", False),
    ],
)
def test_whether_a_path_is_a_gpus(path: str, *, expected: bool) -> None:
    assert is_gpu_node(path) is expected

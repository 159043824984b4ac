"""Directory trees that stand for boards, with programs that answer as theirs do.

A tree has a board's files below one folder: device tree, /etc/nvpmodel.conf, thermal zones, rails, clocks. Its
`nvpmodel` and `jetson_clocks` are shell scripts that read and write these files as the real ones do, with their
messages, down to the question whether to reboot that is asked of a standard input that may be closed. What they are to
do out of the ordinary stands in files below `fake/`:

=======================  ==============================================================================
`needs_reboot`           numbers of the modes that need one, a line each
`fail_times`             how many more times a mode is refused as it is when the driver is not up yet
`warnings`               what nvpmodel prints before everything else
`calls`                  every call of either program, a line each
`booted_mode`            the mode that was confirmed with a reboot, which `reboot_board` carries out
`reboots_by`             the command by which nvpmodel then reboots; a tree has no machine that it could reboot
`hangs`                  if it is there, nvpmodel does not come back from setting a mode
`clocks_fail_times`      how many more times jetson_clocks fails to lock clocks
`clocks_slow`            how many seconds jetson_clocks takes
`store_fails`            if it is there, jetson_clocks cannot store them
`restore_fails_times`    how many more times it says that it could not restore them, which is no exit code of its
`nvfancontrol`           if it is there, the fan's control runs, which is none of ours
=======================  ==============================================================================
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fakes.board_files import cpu_files, hwmon_files, nvpmodel_conf, zone_files
from orin_rerank.board.paths import BoardPaths

__all__ = [
    "AGX_ORIN_32",
    "AGX_ORIN_64",
    "BOARDS",
    "NANO_4",
    "NANO_8",
    "NANO_8_SUPER",
    "NX_8",
    "NX_16",
    "NX_16_SUPER",
    "BoardSpec",
    "make_board",
    "make_pc",
    "power_gpu_on",
    "reboot_board",
]

PROGRAMS: Final = Path(__file__).parent / "board_programs"

GPU: Final = "sys/class/devfreq/17000000.gpu"

R36: Final = "# R36 (release), REVISION: 4.7, GCID: 42132812, BOARD: generic, EABI: aarch64, DATE: Thu Sep 18 2025"
R39: Final = "# R39 (release), REVISION: 2.1, GCID: 47004141, BOARD: generic, EABI: aarch64, DATE: Mon Aug 10 2026"

_NX_RAILS: Final = (("VDD_IN", 5024, 1528), ("VDD_CPU_GPU_CV", 5024, 392), ("VDD_SOC", 5016, 480))


@dataclass(frozen=True)
class Mode:
    """A power mode of a fake board; -1 for no cap."""

    id: int
    name: str
    gpu_hz: int
    tpc_mask: int = 0
    cores: int = 8
    emc_hz: int = 0


@dataclass(frozen=True)
class BoardSpec:
    """What a fake board is like."""

    key: str
    part: str
    carrier: str
    model: str
    memory_kib: int
    cores: int
    tpcs: int
    gpu_clocks: tuple[int, ...]
    modes: tuple[Mode, ...]
    default: int
    fastest: int
    release: str = R36
    rails: tuple[tuple[str, int, int], ...] = (
        ("VDD_IN", 5024, 1528),
        ("VDD_CPU_GPU_CV", 5024, 392),
        ("VDD_SOC", 5016, 480),
    )
    emc_hz: int = 3_199_000_000
    off_zones: tuple[str, ...] = ("cv0", "cv1", "cv2")
    extra: dict[str, str] = field(default_factory=dict)


_FOUR_ON: Final = 240
_TWO_ON: Final = 252
"""Masks have a bit for each of the eight clusters that the largest Orin has; those that a module has not are off."""

EMC_ANY: Final = (1 << 63) - 1


def _clocks(*megahertz: float) -> tuple[int, ...]:
    return tuple(round(clock * 1_000_000) for clock in megahertz)


_AGX_CLOCKS: Final = _clocks(306, 408, 510, 612, 714, 816, 918, 1020, 1122, 1224, 1300.5)
_NX_CLOCKS: Final = _clocks(306, 408, 510, 612, 714, 816, 918)
_NX_SUPER_CLOCKS: Final = (*_NX_CLOCKS, *_clocks(1020, 1122, 1173))
_NANO_CLOCKS: Final = _clocks(306, 408, 510, 612, 624.75)
_NANO_SUPER_CLOCKS: Final = _clocks(306, 408, 510, 612, 714, 816, 918, 1020)
_AGX_RAILS: Final = (
    ("VDD_GPU_SOC", 19_080, 640),
    ("VDD_CPU_CV", 19_080, 240),
    ("VIN_SYS_5V0", 5048, 968),
    ("NC", 0, 0),
    ("VDDQ_VDD2_1V8AO", 19_088, 120),
    ("sum of shunt voltages", 0, 0),
)

AGX_ORIN_64: Final = BoardSpec(
    "agx-orin-64",
    "p3701-0005",
    "p3737-0000",
    "NVIDIA Jetson AGX Orin Developer Kit",
    64_349_000,
    12,
    8,
    _AGX_CLOCKS,
    (
        Mode(0, "MAXN", -1, 0, 12),
        Mode(1, "MODE_15W", 420_750_000, 248, 4, 2_133_000_000),
        Mode(2, "MODE_30W", 624_750_000, 240, 8),
        Mode(3, "MODE_50W", 828_750_000, 0, 12),
    ),
    default=2,
    fastest=0,
    rails=_AGX_RAILS,
)
AGX_ORIN_32: Final = BoardSpec(
    "agx-orin-32",
    "p3701-0004",
    "p3737-0000",
    "NVIDIA Jetson AGX Orin 32GB",
    31_300_000,
    8,
    7,
    _AGX_CLOCKS[:-3],
    (
        Mode(0, "MAXN", -1, 0, 8),
        Mode(1, "MODE_15W", 420_750_000, 120, 4, 2_133_000_000),
        Mode(2, "MODE_30W", 624_750_000, 112, 8),
        Mode(3, "MODE_40W", 828_750_000, 0, 8),
    ),
    default=2,
    fastest=0,
    rails=_AGX_RAILS,
)
NX_16: Final = BoardSpec(
    "orin-nx-16",
    "p3767-0000",
    "p3768-0000",
    "NVIDIA Jetson Orin NX Reference Kit",
    15_655_000,
    8,
    4,
    _NX_CLOCKS,
    (
        Mode(0, "MAXN", -1, _FOUR_ON, 8),
        Mode(1, "10W", 612_000_000, _TWO_ON, 4, 2_133_000_000),
        Mode(2, "15W", 612_000_000, _FOUR_ON, 4, 2_133_000_000),
        Mode(3, "25W", 408_000_000, _FOUR_ON, 8, 3_199_000_000),
    ),
    default=2,
    fastest=0,
)
NX_16_SUPER: Final = dataclasses.replace(
    NX_16,
    key="orin-nx-16-super",
    part="p3767-0000-super",
    gpu_clocks=_NX_SUPER_CLOCKS,
    default=4,
    fastest=0,
    # The last one's clock is no lower than the highest that there is.
    modes=(
        Mode(0, "MAXN_SUPER", -1, _FOUR_ON, 8),
        *NX_16.modes[1:],
        Mode(4, "40W", 1_173_000_000, _FOUR_ON, 8, EMC_ANY),
    ),
    release=R39,
)
NX_8: Final = dataclasses.replace(
    NX_16,
    key="orin-nx-8",
    part="p3767-0001",
    memory_kib=7_640_000,
    cores=6,
    modes=(
        Mode(0, "MAXN", -1, _FOUR_ON, 6),
        Mode(1, "10W", 612_000_000, _TWO_ON, 4, 2_133_000_000),
        Mode(2, "15W", 612_000_000, _FOUR_ON, 4, 2_133_000_000),
        Mode(3, "20W", 408_000_000, _FOUR_ON, 6, 3_199_000_000),
    ),
)
NANO_8: Final = BoardSpec(
    "orin-nano-8", "p3767-0005", "p3768-0000", "NVIDIA Jetson Orin Nano Developer Kit", 7_810_000, 6, 4, _NANO_CLOCKS,
    (Mode(0, "15W", 624_750_000, _FOUR_ON, 6, 2_133_000_000), Mode(1, "7W", 408_000_000, _TWO_ON, 4, 2_133_000_000)),
    default=0, fastest=0, emc_hz=2_133_000_000,
)  # fmt: skip
NANO_8_SUPER: Final = dataclasses.replace(
    NANO_8,
    key="orin-nano-8-super",
    part="p3767-0005-super",
    model="NVIDIA Jetson Orin Nano Developer Kit Super",
    gpu_clocks=_NANO_SUPER_CLOCKS,
    default=1,
    fastest=2,
    emc_hz=3_199_000_000,
    modes=(
        Mode(0, "15W", 612_000_000, _FOUR_ON, 6, 2_133_000_000),
        Mode(1, "25W", 918_000_000, _FOUR_ON, 6),
        Mode(2, "MAXN_SUPER", -1, _FOUR_ON, 6),
        Mode(3, "7W", 408_000_000, _TWO_ON, 4, 2_133_000_000),
    ),
    release=R39,
)
NANO_4: Final = dataclasses.replace(
    NANO_8,
    key="orin-nano-4",
    part="p3767-0004",
    model="NVIDIA Jetson Orin Nano 4GB",
    memory_kib=3_650_000,
    tpcs=2,
    modes=(
        Mode(0, "10W", 624_750_000, _TWO_ON, 6, 2_133_000_000),
        Mode(1, "7W_AI", 624_750_000, _TWO_ON, 4, 2_133_000_000),
        Mode(2, "7W_CPU", 408_000_000, _TWO_ON, 6, 2_133_000_000),
    ),
)

BOARDS: Final = (AGX_ORIN_64, AGX_ORIN_32, NX_16, NX_16_SUPER, NX_8, NANO_8, NANO_8_SUPER, NANO_4)
"""`fastest` of each is what a person would choose with the table of clocks in hand."""


def make_board(root: Path, spec: BoardSpec, *, mode: int | None = None) -> BoardPaths:
    """Makes a board's tree, as it is after boot: in its default mode or another, clocks not locked."""
    number = spec.default if mode is None else mode
    set_mode = next(one for one in spec.modes if one.id == number)
    gpu_hz = max(clock for clock in spec.gpu_clocks if set_mode.gpu_hz < 0 or clock <= set_mode.gpu_hz)
    files = {
        "proc/device-tree/compatible": f"nvidia,{spec.carrier}+{spec.part}\0nvidia,{spec.part}\0nvidia,tegra234\0",
        "proc/device-tree/model": f"{spec.model}\0",
        "proc/meminfo": f"MemTotal:       {spec.memory_kib} kB\nMemFree:        {spec.memory_kib // 3} kB\n"
        f"MemAvailable:   {spec.memory_kib * 3 // 4} kB\nSwapTotal:      {spec.memory_kib // 2} kB\n"
        f"SwapFree:       {spec.memory_kib // 2} kB\n",
        "proc/self/mountinfo": "25 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw\n",
        "etc/nv_tegra_release": spec.release + "\n",
        "etc/nvpmodel.conf": nvpmodel_conf(spec),
        "sys/devices/system/cpu/present": f"0-{spec.cores - 1}\n",
        "sys/devices/platform/gpu.0/load": "0\n",
        f"{GPU}/available_frequencies": " ".join(map(str, spec.gpu_clocks)) + "\n",
        f"{GPU}/min_freq": f"{spec.gpu_clocks[0]}\n",
        f"{GPU}/max_freq": f"{gpu_hz}\n",
        f"{GPU}/cur_freq": f"{spec.gpu_clocks[0]}\n",
        "sys/kernel/debug/bpmp/debug/clk/emc/min_rate": "204000000\n",
        "sys/kernel/debug/bpmp/debug/clk/emc/max_rate": f"{spec.emc_hz}\n",
        "sys/kernel/debug/bpmp/debug/clk/emc/rate": f"{min(2_133_000_000, spec.emc_hz)}\n",
        "sys/kernel/nvpmodel_clk_cap/emc": f"{min(set_mode.emc_hz or spec.emc_hz, spec.emc_hz)}\n",
        "sys/block/zram0/disksize": f"{spec.memory_kib * 1024 // 4}\n",
        "fake/calls": "",
        "fake/nvfancontrol": "",
        "fake/tpcs": f"{spec.tpcs}\n",
        **cpu_files(spec, set_mode.cores),
        **zone_files(spec),
        **hwmon_files(spec),
        **spec.extra,
    }
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for program in PROGRAMS.iterdir():
        target = root / "usr" / ("sbin" if program.name == "nvpmodel" else "bin") / program.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(program, target)
        target.chmod(0o755)
    status = root / "var/lib/nvpmodel/status"
    status.parent.mkdir(parents=True, exist_ok=True)
    status.write_text(f"pmode:{number:04d} fmode:quiet\n")
    return BoardPaths(root)


def power_gpu_on(paths: BoardPaths, *, fails: bool = False) -> None:
    """Makes the nodes that drivers make of a GPU that is powered on; one that cannot be stays with those for power.

    Plain files stand for them, which all of their group may open.
    """
    user = ("as", "ctrl", "ctxsw", "dbg", "nvsched", "prof", "sched", "tsg")
    names = ["nvmap", "nvhost-power-gpu", "nvgpu/igpu0/power", "host1x-fence", "dri/renderD128", "nvidia0", "nvidiactl"]
    if not fails:
        names += ["nvhost-gpu", "nvgpu/igpu0/channel"]
        names += [name for one in user for name in (f"nvhost-{one}-gpu", f"nvgpu/igpu0/{one}")]
    for name in names:
        node = paths.at(f"/dev/{name}")
        node.parent.mkdir(parents=True, exist_ok=True)
        node.touch()
        node.chmod(0o600 if "nvsched" in name else 0o660)


def reboot_board(paths: BoardPaths) -> None:
    """What a reboot does to a board: a mode that waited for one is set, and clocks are no longer locked."""
    booted = paths.at("/fake/booted_mode")
    waiting = paths.at("/fake/needs_reboot")
    mode = booted.read_text().strip() if booted.exists() else None
    kept = waiting.read_text() if waiting.exists() else ""
    booted.unlink(missing_ok=True)
    waiting.unlink(missing_ok=True)
    program = paths.program("nvpmodel")
    assert program is not None
    current = mode or str(int((paths.text("/var/lib/nvpmodel/status") or "").split(":")[1].split()[0]))
    subprocess.run([program, "-m", current], check=True, capture_output=True)
    if kept:
        waiting.write_text(kept)


def make_pc(root: Path) -> BoardPaths:
    """Makes the tree of a PC."""
    files = {
        "proc/meminfo": "MemTotal:       32650000 kB\nMemAvailable:   30000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
        "sys/class/dmi/id/product_name": "Some PC\n",
        "sys/devices/system/cpu/present": "0-15\n",
        "sys/class/hwmon/hwmon0/name": "coretemp\n",
        "sys/class/hwmon/hwmon0/temp1_input": "45000\n",
        "sys/class/hwmon/hwmon0/temp1_crit": "100000\n",
        "sys/class/hwmon/hwmon0/temp2_input": "47000\n",
        "sys/class/hwmon/hwmon0/temp2_crit": "100000\n",
    }
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return BoardPaths(root)

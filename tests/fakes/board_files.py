"""Files of the trees that stand for boards, by their paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fakes.board import BoardSpec

__all__ = ["cpu_files", "hwmon_files", "nvpmodel_conf", "zone_files"]


def nvpmodel_conf(spec: BoardSpec) -> str:
    """A board's /etc/nvpmodel.conf, with the odd spacing that NVIDIA's have."""
    lines = ["# FILES ARE READ BY NVPMODEL", "< PARAM TYPE=FILE NAME=CPU_ONLINE >"]
    lines += [f"CORE_{core} /sys/devices/system/cpu/cpu{core}/online" for core in range(spec.cores)]
    lines += [
        "< PARAM TYPE=FILE NAME=TPC_POWER_GATING >",
        "TPC_PG_MASK /sys/devices/platform/gpu.0/tpc_pg_mask",
        "< PARAM TYPE=CLOCK NAME=GPU >",
        "FREQ_TABLE /sys/class/devfreq/17000000.gpu/available_frequencies",
        "MAX_FREQ /sys/class/devfreq/17000000.gpu/max_freq",
        "MIN_FREQ /sys/class/devfreq/17000000.gpu/min_freq",
        "< PARAM TYPE=CLOCK NAME=EMC >",
        "MAX_FREQ /sys/kernel/nvpmodel_clk_cap/emc",
        "",
    ]
    for mode in spec.modes:
        attributes = (f"ID={mode.id}", f"NAME={mode.name}")
        lines.append(
            f"< POWER_MODEL {' '.join(attributes)} >" if mode.id % 2 else f"<POWER_MODEL {'  '.join(attributes[::-1])}>"
        )
        lines += [f"CPU_ONLINE CORE_{core} {int(core < mode.cores)}" for core in range(spec.cores)]
        lines += [
            f"TPC_POWER_GATING TPC_PG_MASK {mode.tpc_mask}",
            "GPU_POWER_CONTROL_ENABLE GPU_PWR_CNTL_EN on",
            "GPU MIN_FREQ 0",
            f"GPU MAX_FREQ  {mode.gpu_hz}",
            "GPU_POWER_CONTROL_DISABLE GPU_PWR_CNTL_DIS auto",
            f"EMC MAX_FREQ {mode.emc_hz}",
            "DLA0_CORE MAX_FREQ -1",
            "",
        ]
    return "\n".join([*lines, f"< PM_CONFIG DEFAULT={spec.default} >", ""])


def cpu_files(spec: BoardSpec, online: int) -> dict[str, str]:
    """Of its cores, of which the first ones are on."""
    files = {}
    for core in range(spec.cores):
        folder = f"sys/devices/system/cpu/cpu{core}"
        files[f"{folder}/online"] = f"{int(core < online)}\n"
        files[f"{folder}/cpufreq/scaling_min_freq"] = "729600\n"
        files[f"{folder}/cpufreq/scaling_max_freq"] = "1497600\n"
        files[f"{folder}/cpufreq/scaling_cur_freq"] = "1497600\n"
        files[f"{folder}/cpufreq/scaling_governor"] = "schedutil\n"
    return files


def zone_files(spec: BoardSpec) -> dict[str, str]:
    """Of its thermal zones, as oddly written as on boards."""
    files = {}
    temperatures = {
        "cpu": 49_468,
        "gpu": 50_125,
        "cv0": 0,
        "cv1": 0,
        "cv2": 0,
        "soc0": 50_031,
        "soc1": 50_531,
        "soc2": 48_906,
        "tj": 50_531,
    }
    for number, (name, millidegrees) in enumerate(temperatures.items()):
        folder = f"sys/class/thermal/thermal_zone{number}"
        files[f"{folder}/type"] = f"{name}-thermal\n" if number % 2 == 0 else f"{name.upper()}-Thermal\n"
        if name not in spec.off_zones:
            files[f"{folder}/temp"] = f"{millidegrees}\n"
        for trip, (kind, value) in enumerate(
            (("passive", 99_000), ("critical", 104_500), ("active", 51_000), ("active", 70_000))
        ):
            files[f"{folder}/trip_point_{trip}_type"] = f"{kind}\n"
            files[f"{folder}/trip_point_{trip}_temp"] = f"{value}\n"
    alerts = ("cpu", "gpu", "soc0", "soc1", "soc2", "cv0", "cv1", "cv2")
    kinds = [*(f"{name}-throttle-alert" for name in alerts), "hot-surface-alert", "devfreq-17000000.gpu", "pwm-fan"]
    for number, kind in enumerate(kinds):
        files[f"sys/class/thermal/cooling_device{number}/type"] = f"{kind}\n"
        files[f"sys/class/thermal/cooling_device{number}/cur_state"] = "1\n" if kind == "pwm-fan" else "0\n"
    return files


def hwmon_files(spec: BoardSpec) -> dict[str, str]:
    """Of its fan, its rails and its over-current counters."""
    files = {
        "sys/class/hwmon/hwmon0/name": "pwmfan\n",
        "sys/class/hwmon/hwmon0/pwm1": "102\n",
        "sys/class/hwmon/hwmon1/name": "ina3221\n",
        "sys/class/hwmon/hwmon2/name": "soctherm_oc\n",
        "sys/class/hwmon/hwmon2/oc1_event_cnt": "0\n",
        "sys/class/hwmon/hwmon2/oc2_event_cnt": "0\n",
        "sys/class/hwmon/hwmon2/oc3_event_cnt": "27390\n",
    }
    for number, (label, millivolts, milliamperes) in enumerate(spec.rails, 1):
        files[f"sys/class/hwmon/hwmon1/in{number}_label"] = f"{label}\n"
        files[f"sys/class/hwmon/hwmon1/in{number}_input"] = f"{millivolts}\n"
        files[f"sys/class/hwmon/hwmon1/curr{number}_input"] = f"{milliamperes}\n"
    return files

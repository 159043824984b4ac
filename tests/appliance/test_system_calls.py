"""The filter of system calls that tests on a GPU put the daemon under, beside the one that systemd puts it under."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from appliance.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy/systemd/orin-rerank.service"
DEVICE = ROOT / "tests/device"

_FILTERS: Final = r"(Restrict|LockPersonality|SystemCall|NoNewPrivileges|Protect(Clock|Hostname|Kernel))\w*=.*"


def _service(settings: list[str], name: str) -> str:
    lines = ["[Service]", "Type=oneshot", "ExecStart=/usr/bin/python3 /opt/attempts.py"]
    return "\n".join([*lines, f"StandardOutput=file:/root/{name}.json", *settings, ""])


def test_a_filter_made_without_systemd_refuses_what_systemds_refuses(debian, folder):
    settings = [line for line in UNIT.read_text().splitlines() if re.fullmatch(_FILTERS, line)]
    assert any(line.startswith("SystemCallFilter=~") for line in settings)
    with Machine([debian], folder / "system-calls") as machine:
        machine.write("/opt/attempts.py", (DEVICE / "attempts.py").read_text())
        machine.write("/etc/systemd/system/under.service", _service(settings, "under"))
        machine.write("/etc/systemd/system/free.service", _service([], "free"))
        machine.boot()
        machine.run("systemctl", "start", "under.service", "free.service")
        under, free = (json.loads(machine.read(f"/root/{name}.json")) for name in ("under", "free"))
    attempts = [sys.executable, str(DEVICE / "attempts.py")]
    filtered = [sys.executable, str(DEVICE / "filtered.py"), "--unit", str(UNIT), "--"]
    here, ours = (
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for command in (attempts, filtered + attempts)
    )
    refused = {name: error for name, error in ours.items() if error != here[name]}
    assert refused == {name: under[name] for name in refused}
    # A container's own limits may refuse some of it without a filter.
    assert {name for name, error in under.items() if error != free[name]} <= set(refused)

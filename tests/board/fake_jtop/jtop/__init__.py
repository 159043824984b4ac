"""jetson-stats as far as the daemon asks it, for machines without: found by PYTHONPATH, in the process that asks.

FAKE_JTOP says what it does out of the ordinary: `inactive` (the service does not run), `hangs`, `crashes`, `other`
(a release without the memory's clock), `silent` (no value ever comes), `odd` (values that are off).
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import time

HOW = os.environ.get("FAKE_JTOP", "")


class JtopException(Exception):  # noqa: N818
    pass


class jtop:  # noqa: N801
    """The client; its setters end the test."""

    def __init__(self, interval: float = 1.0) -> None:
        self._interval = interval

    def __enter__(self) -> jtop:  # noqa: PYI034
        if HOW == "inactive":
            raise JtopException("The jtop.service is not active. Please run:\nsudo jtop --install-service")
        if HOW == "hangs":
            time.sleep(1000)
        if HOW == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        print("[WARN] the client likes to talk")  # noqa: T201
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0 if HOW != "slow end" else 1000)

    def ok(self, spin: bool = False) -> bool:
        return HOW != "silent"

    @property
    def stats(self) -> dict[str, object]:
        if HOW == "odd":
            return {"time": dt.datetime.now(dt.timezone.utc), "EMC": "OFF", "GPU": 250, "Power TOT": None}
        return {
            "time": dt.datetime.now(dt.timezone.utc),
            "uptime": dt.timedelta(seconds=5),
            "CPU1": 3,
            "EMC": 12,
            "GPU": 42.5,
            "Power VDD_IN": 7680,
            "Power TOT": 7700,
            "nvp model": "15W",
        }

    @property
    def memory(self) -> dict[str, dict[str, int]]:
        if HOW == "other":
            return {"RAM": {"tot": 1}}
        return {"EMC": {"cur": 2_133_000, "max": 3_199_000, "min": 204_000, "val": 12}}

    @property
    def power(self) -> dict[str, object]:
        rails = {"VDD_IN": {"volt": 5024, "curr": 1528, "power": 7680, "online": True}}
        return {"rail": {} if HOW == "odd" else rails, "tot": {"power": 7700}}

    @property
    def board(self) -> dict[str, dict[str, str]]:
        return {"hardware": {"Jetpack": "6.2", "Model": "NVIDIA Jetson Orin NX"}}

    @property
    def nvpmodel(self) -> str:
        return "15W"

    @nvpmodel.setter
    def nvpmodel(self, value: object) -> None:
        raise AssertionError("a setter was called")

"""An Orin, as far as asking it what it is; FAKE_GPU=none has no GPU."""

from __future__ import annotations

import os


class Error(Exception):
    pass


class device_attribute:  # noqa: N801
    INTEGRATED = 18


class Context:
    @staticmethod
    def pop() -> None:
        pass

    def push(self) -> None:
        pass

    def detach(self) -> None:
        pass


class Device:
    def __init__(self, ordinal: int) -> None:
        assert ordinal == 0

    def retain_primary_context(self) -> Context:
        return Context()

    def name(self) -> str:
        return "Orin"

    def compute_capability(self) -> tuple[int, int]:
        return 8, 7

    def get_attribute(self, attribute: int) -> int:
        return int(attribute == device_attribute.INTEGRATED)

    def total_memory(self) -> int:
        return 64 << 30


def init() -> None:
    if os.environ.get("FAKE_GPU") == "none":
        raise Error("cuInit failed: no CUDA-capable device is detected")


def get_driver_version() -> int:
    return 12060

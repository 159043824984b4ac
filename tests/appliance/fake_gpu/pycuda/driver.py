"""The calls by which a GPU is opened and looked at."""

import enum


class Error(Exception):
    pass


class device_attribute(enum.Enum):  # noqa: N801 - pycuda's name
    INTEGRATED = 1
    MULTIPROCESSOR_COUNT = 8


class Context:
    @staticmethod
    def pop():
        pass

    @staticmethod
    def synchronize():
        pass

    def push(self):
        pass

    def detach(self):
        pass


class Device:
    def __init__(self, ordinal):
        assert ordinal == 0

    def retain_primary_context(self):
        return Context()

    def name(self):
        return "Orin"

    def compute_capability(self):
        return 8, 7

    def get_attribute(self, attribute):
        return attribute.value

    def total_memory(self):
        return 16 << 30


def init():
    pass


def get_driver_version():
    return 12060


def mem_get_info():
    return 12 << 30, 16 << 30

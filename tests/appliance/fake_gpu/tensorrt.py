"""Stands for TensorRT on a machine that has no GPU: it loads as the real one does, and compiles without end."""

import enum
import time

__version__ = "10.3.0"


class NetworkDefinitionCreationFlag(enum.IntEnum):
    STRONGLY_TYPED = 1


class ILogger:
    class Severity(enum.IntEnum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3
        VERBOSE = 4


class IProgressMonitor:
    pass


class ExecutionContextAllocationStrategy(enum.IntEnum):
    STATIC = 0
    USER_MANAGED = 2


class Runtime:
    def __init__(self, logger):
        self.logger = logger


class Builder:
    def __init__(self, logger):
        time.sleep(3600)

"""What can be the matter with what lies on disk: settings, sets, checkpoints, bundles, engines."""

from __future__ import annotations

from orin_rerank.errors.base import ErrorKind, OrinRerankError

__all__ = [
    "BundleError",
    "CalibrationError",
    "CheckpointError",
    "DatasetError",
    "ExportBusyError",
    "ExportError",
    "NewerBundleError",
    "NoSpaceError",
    "PlanError",
    "RefusedPrecisionError",
    "SettingsError",
    "StoreBusyError",
    "StoreError",
]


class SettingsError(OrinRerankError):
    """A setting or command-line value is wrong."""

    kind = ErrorKind.INVALID
    code = "settings"


class DatasetError(OrinRerankError):
    """An evaluation or calibration set is malformed; the item names file and line."""

    kind = ErrorKind.DATA
    code = "dataset"


class BundleError(OrinRerankError):
    """A model bundle is missing, incomplete or altered; the item names the file."""

    kind = ErrorKind.DATA
    code = "bundle"


class NewerBundleError(BundleError):
    """A bundle is in a format that only a later version of this program reads."""

    code = "bundle_newer"


class RefusedPrecisionError(BundleError):
    """An INT8 engine did not pass its gate, or nothing shows that it did; the message says why."""

    code = "precision_refused"


class CalibrationError(OrinRerankError):
    """A calibration set, recorded ranges or a plan cannot be used for this model; the item names it."""

    kind = ErrorKind.DATA
    code = "calibration"


class CheckpointError(OrinRerankError):
    """A checkpoint cannot become a graph; the item names the key."""

    kind = ErrorKind.DATA
    code = "checkpoint"


class ExportError(OrinRerankError):
    """A bundle cannot be written where it should be; the item names the path."""

    kind = ErrorKind.DATA
    code = "export"


class NoSpaceError(ExportError):
    """The disk has too little room for a bundle; what is written is kept, and the same command goes on from there."""

    kind = ErrorKind.OVERLOADED
    code = "no_space"


class ExportBusyError(ExportError):
    """Another process is writing a bundle to the same folder."""

    kind = ErrorKind.OVERLOADED
    code = "export_busy"


class StoreError(OrinRerankError):
    """The folder of engines that this machine has made cannot be read or written; the item names the path."""

    kind = ErrorKind.DATA
    code = "store"


class StoreBusyError(StoreError):
    """Another process is making an engine for the same bundle."""

    kind = ErrorKind.OVERLOADED
    code = "store_busy"


class PlanError(StoreError):
    """A compiled engine is damaged, incomplete or not for this machine; building it again helps."""

    code = "plan"

"""The errors of the project, in one tree.

Every error that a person can meet is an `OrinRerankError`. It carries

* `kind`: what sort of failure this is. `serving.status` maps it to a gRPC status code and `cli.exit_codes`
  to an exit code; those two maps are the only places that translate.
* `code`: a stable snake_case name for this very error, safe to match on in a client.
* `item`: the offending part of the request or file where there is one, such as `documents[3].content[0]`.

All are imported from here; `requests`, `files` and `machine` have those that belong together, and `base` the root.

::

    OrinRerankError
    ├── InvalidRequestError            the caller's input is wrong
    │   ├── EmptyQueryError, EmptyDocumentError, NoDocumentsError, TooManyDocumentsError, TextError
    │   ├── TooLongError               does not fit with truncation off, or special tokens alone overflow
    │   └── ImageError
    │       └── ImageDecodeError, ImageTooLargeError, ImageFormatError, ImageAspectRatioError
    ├── UnknownModelError              no such model here
    ├── OverloadedError                the queue is full or load is shed; carries a retry hint
    ├── UnavailableError               building, draining, too hot, unhealthy
    │   └── UnreachableError           seen from a client: no daemon answers at that address
    │       └── SocketDeniedError      ... because this user may not connect to its socket
    ├── DeadlineError                  the caller's deadline passed or cannot be met
    ├── SettingsError                  a setting or command-line value is wrong
    ├── DatasetError                   an evaluation or calibration set is malformed
    ├── CalibrationError               a calibration set, its ranges or a plan cannot be used for this model
    ├── BundleError                    a model bundle is missing, incomplete or altered
    │   ├── NewerBundleError           written by a later version in a format of its own
    │   └── RefusedPrecisionError      INT8 that did not pass its gate, or cannot show that it did
    ├── CheckpointError                a checkpoint cannot become a graph; names the key
    ├── ExportError                    a bundle cannot be written where it should be; names the path
    │   └── NoSpaceError, ExportBusyError
    ├── StoreError                     the engines that this machine has made cannot be read or written
    │   ├── StoreBusyError             another process is making one for the same bundle
    │   └── PlanError                  a compiled engine is damaged or is not for this machine: it must be built again
    ├── EngineError                    an engine failed or gave a score that cannot be trusted
    │   ├── NonFiniteScoreError, PoolExhaustedError, SelfTestError, DeviceLostError, EngineClosedError
    │   ├── TensorRtMissingError, GpuMissingError
    │   ├── MemoryShortError           a model does not fit into the memory that there is; carries the numbers
    │   └── BuildError                 a graph was not compiled to a plan
    │       └── GraphRefusedError, BuildOutOfMemoryError, BuildTimeoutError, BuildCancelledError
    ├── BoardError                     power mode, clocks or a file of the board is not as it must be
    │   └── BoardBusyError, RebootNeededError
    └── InternalError                  a bug of ours
"""

from __future__ import annotations

from orin_rerank.errors.base import (
    ErrorKind,
    InternalError,
    OrinRerankError,
)
from orin_rerank.errors.files import (
    BundleError,
    CalibrationError,
    CheckpointError,
    DatasetError,
    ExportBusyError,
    ExportError,
    NewerBundleError,
    NoSpaceError,
    PlanError,
    RefusedPrecisionError,
    SettingsError,
    StoreBusyError,
    StoreError,
)
from orin_rerank.errors.machine import (
    BoardBusyError,
    BoardError,
    BuildCancelledError,
    BuildError,
    BuildOutOfMemoryError,
    BuildTimeoutError,
    DeviceLostError,
    EngineClosedError,
    EngineError,
    GpuMissingError,
    GraphRefusedError,
    MemoryShortError,
    NonFiniteScoreError,
    PoolExhaustedError,
    RebootNeededError,
    SelfTestError,
    TensorRtMissingError,
)
from orin_rerank.errors.requests import (
    DeadlineError,
    EmptyDocumentError,
    EmptyQueryError,
    ImageAspectRatioError,
    ImageDecodeError,
    ImageError,
    ImageFormatError,
    ImageTooLargeError,
    InvalidRequestError,
    NoDocumentsError,
    OverloadedError,
    SocketDeniedError,
    TextError,
    TooLongError,
    TooManyDocumentsError,
    UnavailableError,
    UnknownModelError,
    UnreachableError,
)

__all__ = [
    "BoardBusyError",
    "BoardError",
    "BuildCancelledError",
    "BuildError",
    "BuildOutOfMemoryError",
    "BuildTimeoutError",
    "BundleError",
    "CalibrationError",
    "CheckpointError",
    "DatasetError",
    "DeadlineError",
    "DeviceLostError",
    "EmptyDocumentError",
    "EmptyQueryError",
    "EngineClosedError",
    "EngineError",
    "ErrorKind",
    "ExportBusyError",
    "ExportError",
    "GpuMissingError",
    "GraphRefusedError",
    "ImageAspectRatioError",
    "ImageDecodeError",
    "ImageError",
    "ImageFormatError",
    "ImageTooLargeError",
    "InternalError",
    "InvalidRequestError",
    "MemoryShortError",
    "NewerBundleError",
    "NoDocumentsError",
    "NoSpaceError",
    "NonFiniteScoreError",
    "OrinRerankError",
    "OverloadedError",
    "PlanError",
    "PoolExhaustedError",
    "RebootNeededError",
    "RefusedPrecisionError",
    "SelfTestError",
    "SettingsError",
    "SocketDeniedError",
    "StoreBusyError",
    "StoreError",
    "TensorRtMissingError",
    "TextError",
    "TooLongError",
    "TooManyDocumentsError",
    "UnavailableError",
    "UnknownModelError",
    "UnreachableError",
]

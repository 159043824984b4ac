"""The errors of the project, in one tree.

Every error that a person can meet is an `OrinRerankError`. It carries

* `kind`: what sort of failure this is. `serving.status` maps it to a gRPC status code and `cli.exit_codes`
  to an exit code; those two maps are the only places that translate.
* `code`: a stable snake_case name for this very error, safe to match on in a client.
* `item`: the offending part of the request or file where there is one, such as `documents[3].content[0]`.

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

import enum
from typing import ClassVar

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


class ErrorKind(enum.Enum):
    """What sort of failure an error is; decides gRPC status and exit code."""

    INVALID = "invalid"
    NOT_FOUND = "not_found"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    DATA = "data"
    INTERNAL = "internal"


class OrinRerankError(Exception):
    """Root of all errors that the project raises on purpose.

    Args:
        message: One sentence for a person; never holds the contents of a request.
        item: The offending item, such as `documents[3]`, a file name or a tensor name.
    """

    kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL
    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, item: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.item = item

    def __str__(self) -> str:
        return f"{self.item}: {self.message}" if self.item else self.message

    def within(self, outer: str) -> OrinRerankError:
        """Returns this error with its item placed inside `outer`: `content[0]` in `documents[3]`."""
        self.item = f"{outer}.{self.item}" if self.item else outer
        return self


class InvalidRequestError(OrinRerankError):
    """The caller's input is wrong; sending it again unchanged cannot succeed."""

    kind = ErrorKind.INVALID
    code = "invalid_request"


class EmptyQueryError(InvalidRequestError):
    """The query holds neither text nor image."""

    code = "empty_query"


class EmptyDocumentError(InvalidRequestError):
    """A document holds neither text nor image."""

    code = "empty_document"


class NoDocumentsError(InvalidRequestError):
    """The request has no documents."""

    code = "no_documents"


class TooManyDocumentsError(InvalidRequestError):
    """The request has more documents than the server takes in one call."""

    code = "too_many_documents"


class TextError(InvalidRequestError):
    """A text cannot be tokenised, for instance because it is not valid Unicode."""

    code = "bad_text"


class TooLongError(InvalidRequestError):
    """Something does not fit and may not, or cannot, be cut."""

    code = "too_long"


class ImageError(InvalidRequestError):
    """An image cannot be used."""

    code = "bad_image"


class ImageFormatError(ImageError):
    """The bytes are no image of a format that the server takes."""

    code = "image_format"


class ImageDecodeError(ImageError):
    """The image is damaged or truncated."""

    code = "image_decode"


class ImageTooLargeError(ImageError):
    """The image has more bytes or pixels than the server decodes (a decompression bomb, perhaps)."""

    code = "image_too_large"


class ImageAspectRatioError(ImageError):
    """The image's longer side is over 200 times its shorter one."""

    code = "image_aspect_ratio"


class UnknownModelError(OrinRerankError):
    """The request names a model that is not served here."""

    kind = ErrorKind.NOT_FOUND
    code = "unknown_model"


class OverloadedError(OrinRerankError):
    """The queue is full or load is being shed.

    Args:
        message: One sentence for a person.
        retry_after_s: When trying again is likely to succeed, in seconds.
    """

    kind = ErrorKind.OVERLOADED
    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float, item: str | None = None) -> None:
        super().__init__(message, item=item)
        self.retry_after_s = retry_after_s


class UnavailableError(OrinRerankError):
    """The daemon cannot rerank now: it starts, builds, drains, is too hot or unhealthy.

    Args:
        message: One sentence for a person.
        item: The offending item.
        retry_after_s: When trying again is likely to succeed, in seconds; None where that is not known.
    """

    kind = ErrorKind.UNAVAILABLE
    code = "unavailable"

    def __init__(self, message: str, *, item: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, item=item)
        self.retry_after_s = retry_after_s


class UnreachableError(UnavailableError):
    """No daemon answers at the address; the item is the address. Only a client can meet this."""

    code = "unreachable"


class SocketDeniedError(UnreachableError):
    """This user may not connect to the daemon's socket; the item is its address. Only a client can meet this."""

    code = "socket_denied"


class DeadlineError(OrinRerankError):
    """The caller's deadline passed, or cannot be met."""

    kind = ErrorKind.DEADLINE
    code = "deadline_exceeded"


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


class EngineError(OrinRerankError):
    """An engine failed."""

    kind = ErrorKind.INTERNAL
    code = "engine"


class NonFiniteScoreError(EngineError):
    """An engine gave a margin that is NaN or infinite."""

    code = "non_finite_score"


class PoolExhaustedError(EngineError):
    """No buffer became free within the deadline."""

    kind = ErrorKind.OVERLOADED
    code = "pool_exhausted"


class DeviceLostError(EngineError):
    """The GPU made an error after which it computes nothing right in this process; only a new process can use it."""

    kind = ErrorKind.UNAVAILABLE
    code = "device_lost"


class EngineClosedError(EngineError):
    """Something was asked of an engine, or of the GPU beneath it, that is closed or being closed."""

    kind = ErrorKind.UNAVAILABLE
    code = "engine_closed"


class SelfTestError(EngineError):
    """A loaded model does not reproduce its golden pairs."""

    code = "self_test"


class TensorRtMissingError(EngineError):
    """The TensorRT bindings are not installed, or cannot be imported."""

    kind = ErrorKind.UNAVAILABLE
    code = "tensorrt_missing"


class GpuMissingError(EngineError):
    """There is no GPU that could be compiled for or computed on, or nothing to reach it by."""

    kind = ErrorKind.UNAVAILABLE
    code = "gpu_missing"


class MemoryShortError(EngineError):
    """A model does not fit into the memory that there is, or that is free.

    Args:
        message: One sentence for a person: what is needed, what there is, and what helps.
        needed_bytes: The least that is needed.
        available_bytes: What there is, or what is free.
    """

    kind = ErrorKind.UNAVAILABLE
    code = "memory_short"

    def __init__(self, message: str, *, needed_bytes: int, available_bytes: int, item: str | None = None) -> None:
        super().__init__(message, item=item)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class BuildError(EngineError):
    """A graph was not compiled to a plan; the item names it.

    Args:
        message: One sentence for a person.
        item: The graph, and its node where one is known.
        advice: What to do about it; None means what helps with this kind of error as a rule.

    Attributes:
        advice: The same.
    """

    code = "build"
    usual_advice: ClassVar[str] = (
        "what is compiled is kept, and the same command goes on from there; if it ends so again, try another --level"
    )

    def __init__(self, message: str, *, item: str | None = None, advice: str | None = None) -> None:
        super().__init__(message, item=item)
        self.advice = advice or self.usual_advice


class GraphRefusedError(BuildError):
    """The compiler does not take a graph; the item names graph and node, the message the operator."""

    kind = ErrorKind.DATA
    code = "graph_refused"
    usual_advice = (
        "`orin-rerank export` writes a bundle's graphs anew, and `orin-rerank calibrate` those of its INT8 engine; if "
        "one is refused still, report this line"
    )


class BuildOutOfMemoryError(BuildError):
    """Memory ran out while a graph was compiled."""

    kind = ErrorKind.OVERLOADED
    code = "build_out_of_memory"
    usual_advice = (
        "stop other programs that use memory, add swap, or compile for shorter packs (--token-budget, --max-tokens); a "
        "restart frees what the GPU's allocator keeps back. What is compiled is kept"
    )


class BuildTimeoutError(BuildError):
    """Compiling took too long, or did not move any more."""

    kind = ErrorKind.DEADLINE
    code = "build_timeout"
    usual_advice = (
        "a board that is short of memory may hang rather than fail: stop other programs, or add swap; a lower --level "
        "takes less time. What is compiled is kept"
    )


class BuildCancelledError(BuildError):
    """Compiling was cancelled."""

    kind = ErrorKind.UNAVAILABLE
    code = "build_cancelled"
    usual_advice = "what is compiled is kept, and the same command goes on from there"


class BoardError(OrinRerankError):
    """Power mode, clocks or a file of the board is not as it must be; names the file, mode or program."""

    kind = ErrorKind.DATA
    code = "board"


class BoardBusyError(BoardError):
    """The board does not take a setting yet, as happens early at boot; the same may succeed later."""

    kind = ErrorKind.UNAVAILABLE
    code = "board_busy"


class RebootNeededError(BoardError):
    """A power mode takes effect only when the board is started again."""

    kind = ErrorKind.UNAVAILABLE
    code = "reboot_needed"


class InternalError(OrinRerankError):
    """A bug of ours; the message says what was violated."""

"""What a request can meet: it is wrong, or cannot be served now or in time."""

from __future__ import annotations

from orin_rerank.errors.base import ErrorKind, OrinRerankError

__all__ = [
    "DeadlineError",
    "EmptyDocumentError",
    "EmptyQueryError",
    "ImageAspectRatioError",
    "ImageDecodeError",
    "ImageError",
    "ImageFormatError",
    "ImageTooLargeError",
    "InvalidRequestError",
    "NoDocumentsError",
    "OverloadedError",
    "SocketDeniedError",
    "TextError",
    "TooLongError",
    "TooManyDocumentsError",
    "UnavailableError",
    "UnknownModelError",
    "UnreachableError",
]


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

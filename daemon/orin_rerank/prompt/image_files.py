"""Image files as bytes: which format, how large, which way up, and what of them the decoder needs to see.

Pillow gets only the parts of a file that pixels depend on. Its readers of metadata (EXIF directories, text chunks,
animation control) raise, warn and unpack on their own account; a picture must not be refused, or a warning be
printed, for a broken comment. Sizes that a decoder would allocate before it can be asked are read here, and files made
to keep a decoder busy (thousands of scans, blocks or runs for few pixels) are refused.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orin_rerank.errors import ImageDecodeError, ImageFormatError, ImageTooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ImageFile", "ImageFormat", "read_image_file"]


class ImageFormat(enum.Enum):
    """The formats that are taken."""

    JPEG = "JPEG"
    PNG = "PNG"
    WEBP = "WebP"
    BMP = "BMP"
    GIF = "GIF"


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file whose pixels have not been decoded.

    Attributes:
        format: By its first bytes; names and declared types count for nothing.
        data: The file, without what pixels do not depend on.
        size: Declared width and height, where the decoder allocates as soon as it opens the file (WebP, GIF).
        orientation: EXIF orientation, 1 to 8; 1 where there is none or it makes no sense.
    """

    format: ImageFormat
    data: bytes = field(repr=False)
    size: tuple[int, int] | None = None
    orientation: int = 1


_PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_PNG_PIXELS: Final = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})
_ORIENTATION_TAG: Final = 0x0112

_MAX_PARTS: Final = 100_000
"""Most segments, chunks or blocks of a file that are looked at; photographs of 30 MB have a few thousand."""

_MAX_JPEG_SCANS: Final = 100
"""A progressive JPEG has about ten. Each costs a pass over all pixels (28 ms for 49 million), and can be 75 bytes."""

_MAX_RUN_LENGTH_BMP: Final = 2 * 1024 * 1024
"""Pillow decodes run-length coding in Python, 0.25 s for each MiB in which no other thread runs."""


def read_image_file(data: bytes) -> ImageFile:
    """Recognises a file and strips it.

    Raises:
        ImageFormatError: If it is of no format that is taken.
        ImageDecodeError: If the header of a WebP or GIF file is cut short or makes no sense, or a file consists of far
            too many parts.
    """
    if data.startswith(b"\xff\xd8\xff"):
        return _read_jpeg(data)
    if data.startswith(_PNG_SIGNATURE):
        return _read_png(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _read_webp(data)
    if data.startswith(b"BM"):
        return _read_bmp(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return _read_gif(data)
    raise ImageFormatError("not a JPEG, PNG, WebP, BMP or GIF file")


def _read_jpeg(data: bytes) -> ImageFile:
    """Leaves out comments and application segments but for JFIF and Adobe ones, which decide how colours are coded."""
    kept = [data[:2]]
    orientation = 1
    position = 2
    for _ in _parts():
        if data[position : position + 1] != b"\xff" or position + 4 > len(data):
            break
        marker = data[position + 1]
        if marker == 0xFF:  # a fill byte
            position += 1
            continue
        end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        if marker == 0xDA or end > len(data):  # start of scan: the rest is entropy-coded
            break
        segment = data[position:end]
        if marker == 0xE1 and segment[4:10] == b"Exif\0\0":
            orientation = _exif_orientation(segment[10:])
        if not (0xE1 <= marker <= 0xED or marker in (0xEF, 0xFE)):
            kept.append(segment)
        position = end
    if data.count(b"\xff\xda", position) > _MAX_JPEG_SCANS:
        raise ImageDecodeError("the JPEG file has far too many scans")
    kept.append(data[position:])
    return ImageFile(ImageFormat.JPEG, b"".join(kept), orientation=orientation)


def _read_png(data: bytes) -> ImageFile:
    """Leaves out all ancillary chunks but transparency: animations come down to their still image."""
    kept = [_PNG_SIGNATURE]
    orientation = 1
    position = len(_PNG_SIGNATURE)
    for _ in _parts():
        if position + 8 > len(data):
            break
        length, name = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        if end > len(data):
            break
        if name == b"eXIf":
            orientation = _exif_orientation(data[position + 8 : end - 4])
        if name in _PNG_PIXELS:
            kept.append(data[position:end])
        position = end
    kept.append(data[position:])
    return ImageFile(ImageFormat.PNG, b"".join(kept), orientation=orientation)


def _read_webp(data: bytes) -> ImageFile:
    size: tuple[int, int] | None = None
    orientation = 1
    position = 12
    for _ in _parts():
        if position + 8 > len(data):
            break
        name, length = struct.unpack_from("<4sI", data, position)
        body = data[position + 8 : position + 8 + min(length, 1 << 16)]
        if size is None:
            size = _webp_size(name, body)
        elif name == b"EXIF":
            orientation = _exif_orientation(body.removeprefix(b"Exif\0\0"))
        position += 8 + length + length % 2
    if size is None:
        raise ImageDecodeError("the WebP file has no image header")
    return ImageFile(ImageFormat.WEBP, data, size=size, orientation=orientation)


def _webp_size(name: bytes, body: bytes) -> tuple[int, int] | None:
    """Width and height from a WebP file's first chunk."""
    if name == b"VP8X" and len(body) >= 10:
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if name == b"VP8L" and len(body) >= 5:
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if name == b"VP8 " and len(body) >= 10:
        width, height = struct.unpack_from("<HH", body, 6)
        return width & 0x3FFF, height & 0x3FFF
    raise ImageDecodeError("the WebP file has no image header")


def _read_bmp(data: bytes) -> ImageFile:
    run_length_coded = data[30:34] in (b"\1\0\0\0", b"\2\0\0\0")
    if run_length_coded and len(data) > _MAX_RUN_LENGTH_BMP:
        raise ImageTooLargeError(f"{len(data)} bytes of run-length coded BMP; at most {_MAX_RUN_LENGTH_BMP} are taken")
    return ImageFile(ImageFormat.BMP, data)


def _read_gif(data: bytes) -> ImageFile:
    """Leaves out extensions before the first frame, but for what says which colour is transparent.

    The size is that of canvas and first frame together: a frame may reach beyond the canvas.
    """
    try:
        width, height, flags = struct.unpack_from("<HHB", data, 6)
        position = header = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
        control = b""
        parts = _parts()
        while data[position] == 0x21:  # an extension: a label, then blocks up to an empty one
            start = position
            position += 2
            while data[position]:
                next(parts)
                position += 1 + data[position]
            position += 1
            if data[start + 1] == 0xF9:
                control = data[start:position]
        if data[position] != 0x2C:
            raise ImageDecodeError("the GIF file has no frame")
        left, top, frame_width, frame_height = struct.unpack_from("<4H", data, position + 1)
    except (IndexError, struct.error):
        raise ImageDecodeError("the GIF file ends before its first frame") from None
    size = (max(width, left + frame_width), max(height, top + frame_height))
    return ImageFile(ImageFormat.GIF, data[:header] + control + data[position:], size=size)


def _parts() -> Iterator[int]:
    """Counts the parts of a file as they are looked at, up to where it becomes absurd."""
    yield from range(_MAX_PARTS)
    raise ImageDecodeError(f"the file consists of over {_MAX_PARTS} parts")


def _exif_orientation(exif: bytes) -> int:
    """The orientation in an EXIF block (a small TIFF file), or 1."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, directory)
        for entry in range(entries):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", exif, directory + 2 + 12 * entry)
            if tag == _ORIENTATION_TAG:
                return value if kind == 3 and 1 <= value <= 8 else 1  # kind 3 is an unsigned 16-bit number
    except struct.error:
        return 1
    return 1

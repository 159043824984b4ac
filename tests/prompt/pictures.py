"""Image files made on the spot."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image


def gradient(height: int, width: int, channels: int = 3) -> np.ndarray:
    """A picture in which no two neighbours and no two channels are alike: uint8 `[height, width, channels]`."""
    y, x, c = np.indices((height, width, channels))
    return ((y * 7 + x * 3 + c * 50 + (y * x) % 11) % 256).astype(np.uint8)


def file_of(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(kind: str = "PNG", height: int = 60, width: int = 90, **options) -> bytes:
    return file_of(Image.fromarray(gradient(height, width)), kind, **options)


def png_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_of_declared_size(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is as large as that."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", zlib.compress(b"\0" * 64))
        + png_chunk(b"IEND", b"")
    )


def exif(orientation: int, order: str = "<") -> bytes:
    start = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
    return start + struct.pack(order + "IH", 8, 1) + entry + struct.pack(order + "I", 0)

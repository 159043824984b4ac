"""Encoded image files to the pixels that the model sees."""

from __future__ import annotations

import contextlib
import hashlib
import io
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import BmpImagePlugin, GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from orin_rerank.errors import ImageDecodeError, ImageError, ImageTooLargeError
from orin_rerank.prompt.encoded import EncodedImage
from orin_rerank.prompt.image_files import ImageFormat, read_image_file
from orin_rerank.prompt.resize import smart_resize

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.prompt.profile import ImageProfile

__all__ = ["ImageSettings", "decode_image", "encode_image"]


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """What is decoded.

    Attributes:
        max_bytes: Largest file.
        max_pixels: Largest decoded area. 50 million pixels take 240 MB while they are decoded, and twice as much where
            something is transparent.
        upright: Whether pictures are turned as their EXIF orientation says. A phone stores a portrait as a landscape
            that says "turn me", and who sent it saw it upright. The reference does not turn; off equals it.
    """

    max_bytes: int = 32 * 1024 * 1024
    max_pixels: int = 50_000_000
    upright: bool = True


# Pillow's readers are named rather than found by `Image.open`: that would try formats which nobody allowed, and warn
# by a limit on pixels that is a global of the process.
_READERS: Final[dict[ImageFormat, Callable[[io.BytesIO], Image.Image]]] = {
    ImageFormat.JPEG: JpegImagePlugin.JpegImageFile,
    ImageFormat.PNG: PngImagePlugin.PngImageFile,
    ImageFormat.WEBP: WebPImagePlugin.WebPImageFile,
    ImageFormat.BMP: BmpImagePlugin.BmpImageFile,
    ImageFormat.GIF: GifImagePlugin.GifImageFile,
}

_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


_LARGE_PIXELS: Final = 16_000_000
"""A picture of more is decoded alone: the cameras of most telephones stay below, and take 80 MB."""
_LARGE: Final = threading.RLock()
"""Of the process, as memory is. Whoever holds it decodes a large picture."""


def encode_image(data: bytes, profile: ImageProfile, settings: ImageSettings) -> EncodedImage:
    """Decodes a file and brings it to the size at which the model sees it (Pillow's bicubic, as the reference does).

    Raises:
        ImageError: See `decode_image`; `ImageAspectRatioError` if one side is over 200 times the other.
    """
    with contextlib.ExitStack() as alone:
        image = _decode(data, settings, alone)
        height, width = smart_resize(image.height, image.width, profile)
        pixels = np.array(image.resize((width, height), Image.Resampling.BICUBIC))
        del image
    digest = hashlib.sha256(repr(pixels.shape).encode())
    digest.update(pixels.tobytes())
    rows, columns = height // profile.patch_size, width // profile.patch_size
    return EncodedImage(
        digest=digest.digest(),
        pixels=pixels,
        grid=(rows, columns),
        tokens=rows * columns // profile.merge_size**2,
    )


def decode_image(data: bytes, settings: ImageSettings) -> Image.Image:
    """Decodes a JPEG, PNG, WebP, BMP or GIF file (its first frame) to 8-bit RGB.

    What is transparent becomes white, whatever carries the transparency: an alpha channel, a palette or a colour key.
    (The reference does so for RGBA only and otherwise shows what lies under the transparency, often black.)
    16-bit grey is scaled to 8 bits. (The reference clips it, which turns most pictures white.)

    Nothing outside this call changes: no global limit is set, no warning is raised. Of large pictures one is decoded at
    a time, whatever the number of threads.

    Raises:
        ImageTooLargeError: If bytes or pixels are over the settings; pixels are counted before they are decoded.
        ImageFormatError: If it is of none of these formats.
        ImageDecodeError: If it is damaged or cut short.
    """
    with contextlib.ExitStack() as alone:
        return _decode(data, settings, alone)


def _decode(data: bytes, settings: ImageSettings, alone: contextlib.ExitStack) -> Image.Image:
    """`decode_image`; where the picture is large, no other large one is decoded until `alone` is closed."""
    if len(data) > settings.max_bytes:
        raise ImageTooLargeError(f"{len(data)} bytes; at most {settings.max_bytes} are taken")
    try:
        file = read_image_file(data)
        if file.size is not None:
            _check_size(file.size, settings, alone)
        with _READERS[file.format](io.BytesIO(file.data)) as image:
            _check_size(image.size, settings, alone)
            image.load()
            rgb = _to_rgb(image)
    except ImageError:
        raise
    except Image.DecompressionBombError:
        raise ImageTooLargeError("more pixels than are decoded") from None
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error, KeyError and more
        raise ImageDecodeError(f"the {file.format.value} file is damaged or cut short") from error
    turn = _UPRIGHT.get(file.orientation) if settings.upright else None
    return rgb if turn is None else rgb.transpose(turn)


def _check_size(size: tuple[int, int], settings: ImageSettings, alone: contextlib.ExitStack) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ImageDecodeError(f"the image is {width} x {height} pixels")
    if width * height > settings.max_pixels:
        raise ImageTooLargeError(f"{width} x {height} pixels; at most {settings.max_pixels} are decoded")
    if width * height > _LARGE_PIXELS:
        alone.enter_context(_LARGE)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB, on white."""
    transparent = image.has_transparency_data
    if image.mode.startswith("I"):
        return _grey_to_rgb(image)
    if not transparent:
        return image if image.mode == "RGB" else image.convert("RGB")  # convert would copy
    rgba = image if image.mode == "RGBA" else image.convert("RGBA")
    white = Image.new("RGB", rgba.size, (255, 255, 255))
    white.paste(rgba, mask=rgba.getchannel("A"))
    return white


def _grey_to_rgb(image: Image.Image) -> Image.Image:
    """16-bit grey to RGB: 65,535 becomes 255; the colour key becomes white."""
    grey = np.asarray(image).astype(np.int64)
    key = image.info.get("transparency")
    eight = np.clip((grey + 128) // 257, 0, 255).astype(np.uint8)
    if isinstance(key, int):
        eight[grey == key] = 255
    return Image.fromarray(eight).convert("RGB")

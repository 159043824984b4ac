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
from orin_rerank.prompt.image_files import ImageFile, ImageFormat, read_image_file
from orin_rerank.prompt.resize import smart_resize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orin_rerank.prompt.profile import ImageProfile

__all__ = ["ImageSettings", "decode_image", "encode_image"]


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """What is decoded.

    Attributes:
        max_bytes: Largest file.
        max_pixels: Largest decoded area, of WebP a quarter of it. 50 million pixels take 270 MB while they are decoded,
            whatever the mode.
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
_ACROSS: Final = (
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)
"""Rows of what they make are columns of the picture."""
_REVERSED: Final = (
    Image.Transpose.ROTATE_180,
    Image.Transpose.FLIP_TOP_BOTTOM,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)
"""The first of those rows is the last of the picture, or its last column."""


_LARGE_PIXELS: Final = 12_500_000
"""A picture of more is decoded alone: the cameras of most telephones stay below, and take 60 MB."""
_LARGE: Final = threading.RLock()
"""Of the process, as memory is. Whoever holds it decodes a large picture."""
_WEBP_WEIGHT: Final = 4
"""How many times as much as of the others the decoder holds of WebP: 16 bytes a pixel, measured."""
_WHOLE_PIXELS: Final = 4_000_000
_STRIP: Final = 128
"""Rows that are converted, turned and narrowed at a time, where a picture has more pixels than that."""


def encode_image(data: bytes, profile: ImageProfile, settings: ImageSettings) -> EncodedImage:
    """Decodes a file and brings it to the size at which the model sees it (Pillow's bicubic, as the reference does).

    Raises:
        ImageError: See `decode_image`; `ImageAspectRatioError` if one side is over 200 times the other.
    """
    with _loaded(data, settings) as (image, turn):
        width, height = image.size if turn not in _ACROSS else image.size[::-1]
        height, width = smart_resize(height, width, profile)
        pixels = np.array(_resized(image, turn, (width, height)))
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
    with _loaded(data, settings) as (image, turn):
        rgb = _to_rgb(image)
        return rgb if turn is None else rgb.transpose(turn)


@contextlib.contextmanager
def _loaded(data: bytes, settings: ImageSettings) -> Iterator[tuple[Image.Image, Image.Transpose | None]]:
    """A file's pixels as they are stored, and how they are to be turned; `decode_image` names the errors.

    Where the picture is large, no other large one is decoded within.
    """
    if len(data) > settings.max_bytes:
        raise ImageTooLargeError(f"{len(data)} bytes; at most {settings.max_bytes} are taken")
    try:
        file = read_image_file(data)
        with contextlib.ExitStack() as alone:
            if file.size is not None:
                _check_size(file, file.size, settings, alone)
            with _READERS[file.format](io.BytesIO(file.data)) as image:
                _check_size(file, image.size, settings, alone)
                image.load()
                yield image, _UPRIGHT.get(file.orientation) if settings.upright else None
    except ImageError:
        raise
    except Image.DecompressionBombError:
        raise ImageTooLargeError("more pixels than are decoded") from None
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error, KeyError and more
        raise ImageDecodeError(f"the {file.format.value} file is damaged or cut short") from error


def _check_size(file: ImageFile, size: tuple[int, int], settings: ImageSettings, alone: contextlib.ExitStack) -> None:
    width, height = size
    weight = _WEBP_WEIGHT if file.format is ImageFormat.WEBP else 1
    if width < 1 or height < 1:
        raise ImageDecodeError(f"the image is {width} x {height} pixels")
    if width * height * weight > settings.max_pixels:
        most = settings.max_pixels // weight
        raise ImageTooLargeError(f"{width} x {height} pixels; at most {most} are decoded of {file.format.value}")
    if width * height * weight > _LARGE_PIXELS:
        alone.enter_context(_LARGE)


def _resized(image: Image.Image, turn: Image.Transpose | None, size: tuple[int, int]) -> Image.Image:
    """A picture as RGB, turned and resized.

    One of some size that is not RGB, or is to be turned, goes a strip at a time, so that there is no second picture of
    its size: rows are resized first, then columns. Pillow does so too, but for some sizes of which it takes the columns
    first; then values are rounded between the two in another order.

    Args:
        image: The picture as it is stored.
        turn: How it is turned first; None is not.
        size: Width and height that it gets.
    """
    if image.width * image.height <= _WHOLE_PIXELS or (
        image.mode == "RGB" and not image.has_transparency_data and turn is None
    ):
        rgb = _to_rgb(image)
        return (rgb if turn is None else rgb.transpose(turn)).resize(size, Image.Resampling.BICUBIC)
    rows = image.width if turn in _ACROSS else image.height
    narrow = Image.new("RGB", (size[0], rows))
    for first in range(0, rows, _STRIP):
        last = min(first + _STRIP, rows)
        begin, end = (rows - last, rows - first) if turn in _REVERSED else (first, last)
        strip = image.crop((begin, 0, end, image.height) if turn in _ACROSS else (0, begin, image.width, end))
        strip = _to_rgb(strip)
        if turn is not None:
            strip = strip.transpose(turn)
        narrow.paste(strip.resize((size[0], last - first), Image.Resampling.BICUBIC), (0, first))
    return narrow.resize(size, Image.Resampling.BICUBIC)


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
    grey = np.asarray(image).astype(np.int32)
    key = image.info.get("transparency")
    eight = np.clip((grey + 128) // 257, 0, 255).astype(np.uint8)
    if isinstance(key, int):
        eight[grey == key] = 255
    return Image.fromarray(eight).convert("RGB")

from __future__ import annotations

import concurrent.futures
import dataclasses
import struct
import subprocess
import sys
import time
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile

from orin_rerank.errors import (
    ImageAspectRatioError,
    ImageDecodeError,
    ImageError,
    ImageFormatError,
    ImageTooLargeError,
)
from orin_rerank.prompt.images import ImageSettings, decode_image, encode_image
from orin_rerank.prompt.resize import smart_resize
from prompt.pictures import exif, file_of, gradient, picture, png_chunk, png_of_declared_size
from prompt.reference import IMAGE_PROFILE

SETTINGS = ImageSettings()
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")


def pixels(data: bytes, settings: ImageSettings = SETTINGS) -> np.ndarray:
    image = decode_image(data, settings)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("kind", ["PNG", "BMP"])
def test_lossless_files_give_their_pixels(kind):
    assert np.array_equal(pixels(picture(kind)), gradient(60, 90))


def test_lossless_webp_gives_its_pixels():
    assert np.array_equal(pixels(picture("WEBP", lossless=True)), gradient(60, 90))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 95, "optimize": True}])
def test_a_jpeg_is_decoded_as_pillow_does(options):
    import io

    data = picture("JPEG", comment=b"a comment", exif=b"Exif\0\0" + exif(1), icc_profile=b"not a profile", **options)
    assert np.array_equal(pixels(data), np.asarray(Image.open(io.BytesIO(data))))


def test_a_one_pixel_image():
    assert pixels(picture(height=1, width=1)).shape == (1, 1, 3)


# Transparency ----------------------------------------------------------------------------------------------------


def on_white(colour: int, alpha: int) -> int:
    return round((colour * alpha + 255 * (255 - alpha)) / 255)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("alpha", [0, 100, 255])
def test_alpha_goes_on_white(kind, alpha):
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    data = file_of(Image.new("RGBA", (8, 8), (200, 30, 0, alpha)), kind, **options)
    assert np.abs(pixels(data)[4, 4].astype(int) - [on_white(c, alpha) for c in (200, 30, 0)]).max() <= 1


def test_grey_with_alpha_goes_on_white():
    assert pixels(file_of(Image.new("LA", (4, 4), (0, 0)), "PNG")).min() == 255


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_palette_entry_is_white(kind):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([10, 20, 30, 0, 0, 0])
    image.putpixel((0, 0), 0)
    out = pixels(file_of(image, kind, transparency=1))
    assert out[0, 0].tolist() == [10, 20, 30]
    assert out[1, 1].tolist() == [255] * 3


def test_a_palette_of_alphas_goes_on_white():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([10, 20, 30, 0, 0, 0])
    out = pixels(file_of(image, "PNG", transparency=bytes([255, 51])))
    assert out[1, 1].tolist() == [204] * 3


@pytest.mark.parametrize(("mode", "colour", "key"), [("RGB", (1, 2, 3), (1, 2, 3)), ("L", 7, 7), ("1", 0, 0)])
def test_a_colour_key_is_white(mode, colour, key):
    assert pixels(file_of(Image.new(mode, (4, 4), colour), "PNG", transparency=key)).min() == 255


def test_cmyk_becomes_rgb():
    out = pixels(file_of(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95))
    assert (np.abs(out[8, 8].astype(int) - [255, 0, 0]) < 30).all()


def test_sixteen_bit_grey_is_scaled_not_clipped():
    values = np.array([[0, 257 * 50, 257 * 200, 65535]], dtype=np.uint16)
    assert pixels(file_of(Image.fromarray(values), "PNG"))[0, :, 0].tolist() == [0, 50, 200, 255]


def test_sixteen_bit_colour_and_few_bit_grey():
    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    row = b"\0" + struct.pack(">HHH", 0xFFFF, 0x8080, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", zlib.compress(row))
        + png_chunk(b"IEND", b"")
    )
    assert pixels(png)[0, 0].tolist() == [255, 128, 0]
    bilevel = file_of(Image.new("1", (9, 3), 1), "PNG")
    assert pixels(bilevel).min() == 255


@pytest.mark.parametrize(
    ("mode", "orientation"),
    [("L", 1), ("RGBA", 1), ("CMYK", 1), ("I;16", 6), *(("RGB", orientation) for orientation in range(1, 9))],
)
def test_strips_come_to_what_the_whole_does(mode, orientation):
    """Converted, turned and resized as one, and a strip at a time: the same, but for what is rounded on the way."""
    small = np.random.default_rng(3).integers(0, 256, (45, 60, 4), dtype=np.uint8)
    image = Image.fromarray(small, "RGBA").resize((2400, 1800), Image.Resampling.BILINEAR)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    else:
        image = image if mode == "RGBA" else image.convert("RGB").convert(mode)
    kind = "JPEG" if mode == "CMYK" else "PNG"
    block = (b"Exif\0\0" if kind == "JPEG" else b"") + exif(orientation, "<")
    data = file_of(image, kind, exif=block, **({} if kind == "JPEG" else {"compress_level": 1}))
    limits = dataclasses.replace(IMAGE_PROFILE, max_pixels=300 * 1024)
    encoded = encode_image(data, limits, SETTINGS)
    whole = decode_image(data, SETTINGS)
    rows, columns = smart_resize(whole.height, whole.width, limits)
    expected = np.asarray(whole.resize((columns, rows), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(encoded.pixels - expected).max() <= 2


def test_a_large_picture_is_never_there_twice():
    """The peak of a process that decodes one of 12 million pixels, in what used to take most."""
    script = (
        "import io, resource, sys\n"
        "import numpy as np\n"
        "from PIL import Image\n"
        "from orin_rerank.prompt.images import ImageSettings, encode_image\n"
        "from orin_rerank.prompt.profile import ImageProfile\n"
        "profile = ImageProfile(16, 2, 2, 48, 64, 1e4, 1024, 1024 * 256)\n"
        "settings, data = ImageSettings(), sys.stdin.buffer.read()\n"
        "small = io.BytesIO()\n"
        "Image.new('RGB', (64, 64)).save(small, 'PNG')\n"
        "encode_image(small.getvalue(), profile, settings)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "encode_image(data, profile, settings)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    pixels_of = 4000 * 3000
    for image in (
        Image.new("RGBA", (4000, 3000), (1, 2, 3, 4)),
        Image.fromarray(np.full((3000, 4000), 777, dtype=np.uint16)),
    ):
        data = file_of(image, "PNG", exif=exif(6, "<"))
        done = subprocess.run([sys.executable, "-c", script], input=data, capture_output=True, check=True)
        assert int(done.stdout) * 1024 < 6 * pixels_of, image.mode


# Orientation and animation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(kind, order, orientation):
    from PIL import ImageOps

    block = exif(orientation, order)
    data = picture(kind, exif=block if kind == "PNG" else b"Exif\0\0" + block)
    plain = decode_image(data, ImageSettings(upright=False))
    tagged = plain.copy()
    tagged.getexif()[0x0112] = orientation
    assert np.array_equal(pixels(data), np.asarray(ImageOps.exif_transpose(tagged)))


@pytest.mark.parametrize(
    "block", [b"", b"II*\0", b"II*\0\xff\xff\xff\xff", exif(0), exif(9), exif(6)[:-8], b"junk" * 9]
)
def test_a_senseless_orientation_is_none(block):
    data = picture("JPEG", exif=b"Exif\0\0" + block)
    assert pixels(data).shape == (60, 90, 3)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_is_its_first_frame(kind):
    frames = [Image.new("RGB", (20, 10), colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    data = file_of(frames[0], kind, save_all=True, append_images=frames[1:], duration=10)
    assert np.abs(pixels(data)[5, 5].astype(int) - [250, 0, 0]).max() <= 6


# Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"hello",
        b"%PDF-1.4",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"RIFF\0\0\0\0WAVEfmt ",
        b"\xff\xd8",
    ]
    + [file_of(Image.new("RGB", (4, 4)), kind) for kind in ("TIFF", "PPM", "ICO", "TGA", "PCX", "JPEG2000")],
)
def test_other_formats_are_refused(data):
    with pytest.raises(ImageFormatError):
        decode_image(data, SETTINGS)


def test_formats_go_by_contents_and_nothing_else():
    assert pixels(picture("PNG")).shape == pixels(picture("JPEG")).shape == (60, 90, 3)


def test_bytes_are_limited():
    with pytest.raises(ImageTooLargeError, match="at most 100 are taken"):
        decode_image(picture(), ImageSettings(max_bytes=100))


@pytest.mark.parametrize("size", [(50_000, 50_000), (2**31 - 1, 2**31 - 1), (10_000, 5_001), (2**31 - 1, 1)])
def test_a_png_bomb_is_refused_from_its_header(size):
    started = time.process_time()
    with pytest.raises(ImageError):
        decode_image(png_of_declared_size(*size), SETTINGS)
    assert time.process_time() - started < 0.2


def test_bombs_of_the_other_formats_are_refused_from_their_headers():
    gif = bytearray(picture("GIF"))
    gif[6:10] = struct.pack("<HH", 65535, 65535)
    frame = bytearray(picture("GIF"))
    descriptor = frame.index(b"\x2c", 13 + 3 * 256)
    frame[descriptor + 5 : descriptor + 9] = struct.pack("<HH", 65535, 65535)
    webp = bytearray(file_of(Image.new("RGBA", (8, 8), (1, 2, 3, 4)), "WEBP", exif=b"Exif\0\0" + exif(1)))
    assert webp[12:16] == b"VP8X"
    webp[24:30] = b"\xff\x3f\x00\xff\x3f\x00"
    bmp = bytearray(picture("BMP"))
    bmp[18:26] = struct.pack("<ii", 60_000, 60_000)
    jpeg = bytearray(picture("JPEG"))
    start_of_frame = jpeg.index(b"\xff\xc0")
    jpeg[start_of_frame + 5 : start_of_frame + 9] = b"\xff\xff\xff\xff"
    started = time.process_time()
    for bomb in (gif, frame, webp, bmp, jpeg):
        with pytest.raises(ImageTooLargeError, match=r"at most (50000000|12500000) are decoded"):
            decode_image(bytes(bomb), SETTINGS)
    assert time.process_time() - started < 0.2


def test_a_large_flat_picture_within_the_limit_is_decoded():
    data = file_of(Image.new("1", (9000, 5000)), "PNG")
    assert len(data) < 20_000
    assert decode_image(data, SETTINGS).size == (9000, 5000)


@pytest.mark.parametrize(("height", "width"), [(1, 201), (201, 1), (3, 700)])
def test_very_thin_pictures_are_refused(height, width):
    with pytest.raises(ImageAspectRatioError):
        encode_image(picture(height=height, width=width), IMAGE_PROFILE, SETTINGS)
    assert encode_image(picture(height=1, width=200), IMAGE_PROFILE, SETTINGS).pixels.shape[0] == 32


def test_an_endless_gif_extension_is_refused():
    head = picture("GIF")[:10] + b"\0\0\0"
    for body in (b"\x21\xfe", b"\x21\xfe" + b"\xff" * 300, b"\x3b", b"\x21\xfe\0" * 1000, b""):
        with pytest.raises(ImageDecodeError):
            decode_image(head + body, SETTINGS)


def test_a_broken_comment_does_not_break_a_picture():
    png = picture("PNG")
    bomb = png_chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"x" * 80_000_000))
    animation = png_chunk(b"acTL", struct.pack(">II", 0, 0)) + png_chunk(b"fcTL", b"\0" * 26)
    for extra in (bomb, animation, png_chunk(b"iCCP", b"junk"), png_chunk(b"gAMA", b""), png_chunk(b"eXIf", b"junk")):
        assert np.array_equal(pixels(png[:33] + extra + png[33:]), gradient(60, 90))


def test_files_made_to_keep_a_decoder_busy_are_refused():
    jpeg = picture("JPEG", 400, 400, progressive=True)
    scans = jpeg[jpeg.rindex(b"\xff\xda") : -2] * 2000
    comments = b"\x21\xfe\1c\0" * 200_000
    gif = picture("GIF")
    table_end = 13 + 3 * 256
    bmp = bytearray(picture("BMP"))
    bmp[30] = 1
    files = {
        "scans": jpeg[:-2] + scans + jpeg[-2:],
        "segments": jpeg[:2] + b"\xff\xe0\0\2" * 200_000 + jpeg[2:],
        "chunks": picture("PNG")[:33] + png_chunk(b"IDAT", b"") * 200_000,
        "blocks": gif[:table_end] + comments + gif[table_end:],
        "riff": b"RIFF\0\0\0\0WEBP" + picture("WEBP")[12:] + b"junk\0\0\0\0" * 200_000,
        "runs": bytes(bmp) + b"\1\1" * 1_500_000,
    }
    for name, data in files.items():
        started = time.process_time()
        with pytest.raises(ImageError, match=r"too many scans|over 100000 parts|run-length"):
            decode_image(data, SETTINGS)
        assert time.process_time() - started < 1, name


def test_comments_of_a_gif_do_not_slow_it_down():
    gif = picture("GIF")
    table_end = 13 + 3 * 256
    comments = (b"\x21\xfe" + (b"\xff" + b"c" * 255) * 2 + b"\0") * 40_000
    started = time.process_time()
    assert np.array_equal(pixels(gif[:table_end] + comments + gif[table_end:]), pixels(gif))
    assert time.process_time() - started < 1


def test_a_run_length_coded_bmp():
    palette = b"\0\0\0\0" + b"\0\0\xff\0" + b"\0" * 4 * 254
    rows = b"\4\1\0\0" + b"\4\1\0\0" + b"\0\1"  # two rows of four pixels of colour 1
    info = struct.pack("<IiiHHIIiiII", 40, 4, 2, 1, 8, 1, len(rows), 0, 0, 256, 0)
    start = 14 + len(info) + len(palette)
    data = struct.pack("<2sIHHI", b"BM", start + len(rows), 0, 0, start) + info + palette + rows
    assert pixels(data).tolist() == [[[255, 0, 0]] * 4] * 2


def test_a_sixteen_bit_colour_key_is_white():
    values = np.array([[0, 1000, 65535]], dtype=np.uint16)
    png = file_of(Image.fromarray(values), "PNG")
    key = png_chunk(b"tRNS", struct.pack(">H", 1000))
    assert pixels(png[:33] + key + png[33:])[0, :, 0].tolist() == [0, 255, 255]


# Damage ----------------------------------------------------------------------------------------------------------


def samples() -> dict[str, bytes]:
    rgba = Image.fromarray(gradient(40, 50, 4))
    frames = [Image.fromarray(gradient(20, 30)[:, :, ::-1]), Image.fromarray(gradient(20, 30))]
    return {
        **{kind: picture(kind, 40, 50) for kind in FORMATS},
        "progressive": picture("JPEG", 40, 50, progressive=True, exif=b"Exif\0\0" + exif(6)),
        "cmyk": file_of(Image.fromarray(gradient(40, 50, 4), mode="CMYK"), "JPEG"),
        "rgba": file_of(rgba, "PNG"),
        "palette": file_of(Image.fromarray(gradient(40, 50)).quantize(16), "PNG", transparency=3),
        "lossless webp": file_of(rgba, "WEBP", lossless=True, exif=b"Exif\0\0" + exif(3)),
        "animated gif": file_of(frames[0], "GIF", save_all=True, append_images=frames),
        "animated webp": file_of(frames[0], "WEBP", save_all=True, append_images=frames),
        "animated png": file_of(frames[0], "PNG", save_all=True, append_images=frames),
        "16-bit": file_of(Image.fromarray(gradient(40, 50, 1)[:, :, 0].astype(np.uint16) * 257), "PNG"),
    }


SAMPLES = samples()


def outcome(data: bytes) -> bool:
    """Whether it decodes; anything but a picture or an `ImageError` fails the test that asks."""
    try:
        image = decode_image(data, ImageSettings(max_pixels=1_000_000))
    except ImageError:
        return False
    assert image.mode == "RGB"
    assert 0 < image.width * image.height <= 1_000_000
    return True


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_cut_short_is_refused(name):
    data = SAMPLES[name]
    whole = pixels(data)
    for cut in range(0, len(data), max(1, len(data) // 150)):
        if outcome(data[:cut]):  # what is missing was not needed: checksums, end marks, later frames
            assert np.array_equal(pixels(data[:cut]), whole)
            assert name.startswith("animated") or cut > 0.9 * len(data)


@pytest.mark.parametrize("name", SAMPLES)
def test_damaged_bytes_give_a_picture_or_an_image_error(name):
    random = np.random.default_rng(len(name))
    data = SAMPLES[name]
    started = time.process_time()
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(random.integers(1, 6)):
            # Headers are hit more often than their share of bytes.
            place = random.integers(0, len(data) if random.random() < 0.5 else min(64, len(data)))
            damaged[place] = random.integers(0, 256)
        outcome(bytes(damaged))
    assert time.process_time() - started < 10


def test_pieces_put_together_wrongly_give_a_picture_or_an_image_error():
    random = np.random.default_rng(7)
    files = list(SAMPLES.values())
    for _ in range(200):
        one, two = (files[i] for i in random.integers(0, len(files), 2))
        outcome(one[: random.integers(0, len(one))] + two[random.integers(0, len(two)) :])
    for start in (
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"RIFF\0\0\0\0WEBP",
        b"RIFF\0\0\0\0WEBPVP8X",
        b"BM",
        b"GIF89a",
    ):
        for _ in range(30):
            outcome(start + random.bytes(random.integers(0, 300)))


def test_nothing_global_changes_and_nothing_warns():
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    bombs = [png_of_declared_size(20_000, 20_000), png_of_declared_size(10_000, 10_000)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for data in [*SAMPLES.values(), *bombs]:
            outcome(data)
    assert caught == []
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))


def test_threads_decode_side_by_side():
    files = list(SAMPLES.values()) * 4
    expected = [pixels(data).tobytes() for data in files]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert [array.tobytes() for array in pool.map(pixels, files)] == expected

"""What scratch memory the vision encoder of the mini asks for, by the sizes that a profile spans.

python tests/engines/tensorrt/measure_profiles.py    # with the tensorrt-rtx wheels; a minute or so
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engines.tensorrt.compiling import compile_here
from orin_rerank.engines.tensorrt.profiles import Extent, ShapeProfile

GRAPH = Path(__file__).parents[3] / "engines" / "mini" / "vision.primitive.fp16.onnx"
SPANS = (
    (16, 7200),
    (3140, 7200),
    (7200, 7200),
    (788, 3136),
    (3136, 3136),
    (200, 784),
    (784, 784),
    (4, 196),
    (196, 196),
)


def activation_bytes(least: int, most: int) -> int:
    span = Extent(least, most, most)
    profile = ShapeProfile("measured", {"grid": span, "patches": span})
    return compile_here(GRAPH, [profile]).scratch[0]


def main() -> None:
    for least, most in SPANS:
        print(f"{least:5} to {most:5} patches: {activation_bytes(least, most) / 1e6:8.1f} MB", flush=True)


if __name__ == "__main__":
    main()

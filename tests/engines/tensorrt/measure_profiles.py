"""What scratch memory the vision encoder of the mini asks for, by the sizes that a profile spans.

python tests/engines/tensorrt/measure_profiles.py    # with the tensorrt-rtx wheels; a minute or so
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from orin_rerank.engines.tensorrt.api import choose_target, trt
from orin_rerank.engines.tensorrt.network import add_profiles, parse_network
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


class Listener(trt.ILogger):
    """Hears what the compiler says in passing of memory."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.activation_bytes = 0

    def log(self, severity: Any, msg: str) -> None:
        found = re.search(r"Total Activation Memory: (\d+) bytes", msg)
        if found:
            self.activation_bytes = int(found[1])


def activation_bytes(least: int, most: int) -> int:
    listener = Listener()
    parsed = parse_network(GRAPH, None, listener)
    config = parsed.builder.create_builder_config()
    choose_target(config, "SM86")
    config.builder_optimization_level = 0
    span = Extent(least, most, most)
    add_profiles(parsed, config, [ShapeProfile("measured", {"grid": span, "patches": span})])
    assert parsed.builder.build_serialized_network(parsed.network, config) is not None
    return listener.activation_bytes


def main() -> None:
    for least, most in SPANS:
        print(f"{least:5} to {most:5} patches: {activation_bytes(least, most) / 1e6:8.1f} MB", flush=True)


if __name__ == "__main__":
    main()

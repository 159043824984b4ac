# ruff: noqa: T201
"""The product's margins at the published models' sizes, beside transformers' in float32, bfloat16 and float16.

    PYTHONPATH=daemon:tests python tests/device/numerics.py --out figures.json [--models vl-8b ...]

Needs torch, transformers, onnxruntime-gpu, pycuda and a GPU of 80 GB for the largest; `--device cpu --models tiny-vl`
goes through all of it on a processor. Weights are random (`scaled_models`), since the published ones need not be at
hand: what a precision loses is a matter of sizes and of how large activations are. docs/scale.md holds what it gave.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from activation_peaks import ActivationPeaks
from half_residual import halve_residual
from margin_errors import margin_errors
from product_margins import DATASET, TOKENIZER
from scale_pairs import prompt_profile, scale_requests
from scale_shapes import MODELS
from scaled_models import OUTLIERS, Massive, ScaledModel

from fakes.checkpoint_config import checkpoint_config
from oracle.graph_reference import Reference
from orin_rerank.engines.graph_files import model_weights, write_graph_pair
from orin_rerank.graph.architecture import read_architecture
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.weights import MARGIN_ROW, WeightSpec
from orin_rerank.prompt.templates import IMAGE_PAD, VISION_START
from orin_rerank.prompt.tokenizer import PromptTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HALF_RESIDUAL = "half-residual"
VARIANTS = {
    "fused": ("fused.fp16", "fp16"),
    "primitive": ("primitive.fp16", "fp16"),
    HALF_RESIDUAL: (f"{HALF_RESIDUAL}.fp16", "fp16"),  # the primitive one's residual stream in float16
    "float32": ("fused.fp32", "fp32"),
}
STORED = "float32, weights from float16"
"""What storing the weights in float16 costs by itself."""
SPREAD = 4.0
"""Standard deviation that margins are brought to, within a power of two."""
OVERFLOWING = (63_898.0, 131_072.0)
"""Massive values: float16 holds the first, but not with what comes on top; of the second it holds the half."""

FLOAT32_PARAMETERS = 3_000_000_000
"""Models with more are not computed in float32 by the product: it would widen the weights on the host."""

_started = time.perf_counter()


def say(text: str) -> None:
    """Prints progress."""
    print(f"[{time.perf_counter() - _started:6.1f}] {text}", flush=True)


class TorchTensors:
    """A weight file's source: a model of transformers' on any device.

    Args:
        model: The model.
        margin_row: float32 `[hidden]`.
    """

    def __init__(self, model: ScaledModel, margin_row: torch.Tensor) -> None:
        self._tensors = model.tensors
        self._row = margin_row

    def pieces(self, spec: WeightSpec) -> Iterator[np.ndarray]:
        """A tensor in one piece."""
        values = self._row if spec.name == MARGIN_ROW else self._tensors[spec.name]
        assert tuple(values.shape) == spec.shape, spec
        # Overflow would be infinite here, and an error there.
        yield values.to(torch.float16 if spec.dtype == "F16" else torch.float32).cpu().numpy()


class Trial:
    """One model: its weights, its pairs, what transformers gives for them, and what the product gives.

    Args:
        name: Of the model.
        options: The command's.
    """

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name = name
        self.architecture = MODELS[name]
        self.options = options
        self.figures: dict[str, Any] = {}
        self._margins: dict[str, list[float]] = {}
        self.figures["margins"] = self._margins
        self._tokenizer = PromptTokenizer.from_file(TOKENIZER)
        self._profile = prompt_profile(self.architecture)
        requests = scale_requests(
            self._profile,
            self._tokenizer,
            DATASET,
            requests=options.requests,
            documents=options.documents,
            sides=tuple(options.sides),
        )
        self._pairs = [(request.prefix, document) for request in requests for document in request.documents]
        self._requests = [i for i, request in enumerate(requests) for _ in request.documents]
        lengths = [len(prefix) + len(document) for prefix, document in self._pairs]
        images = [sum(len(segment.images) for segment in pair) for pair in self._pairs]
        self.figures["pairs"] = {
            "count": len(lengths),
            "with_images": sum(count > 0 for count in images),
            "tokens": [min(lengths), sorted(lengths)[len(lengths) // 2], max(lengths)],
        }
        say(f"{name}: {self.figures['pairs']}")
        config = checkpoint_config(
            self.architecture,
            image_pad=self._tokenizer.special_id(IMAGE_PAD),
            vision_start=self._tokenizer.special_id(VISION_START),
        )
        self.folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=options.folder))
        (self.folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        assert read_architecture(self.folder) == self.architecture
        self._model = ScaledModel(self.architecture, config, options.device)
        # One that has everything: an image, if the model takes any, and text of some length.
        sample = max(range(len(images)), key=lambda i: (images[i], -abs(lengths[i] - 700)))
        # Among so few channels every token is like the first, and would have the massive value too.
        self._massive = Massive() if self.architecture.text.hidden >= 1024 else Massive(150.0, 40.0)
        self._model.grow(lambda: self._reference(self._row()).hidden(*self._pairs[sample]), self._massive, OUTLIERS)
        parameters = sum(values.numel() for values in self._model.tensors.values())
        self.figures["parameters"] = parameters
        say(f"{parameters:,} weights made")

    def compare(self) -> None:
        """Scores the pairs with transformers in float32, the product, then transformers in lower precisions."""
        expected = self._expected()
        self._write_weights()
        self.figures["product"] = {}
        small = self.figures["parameters"] < FLOAT32_PARAMETERS
        first, *others = [name for name in self.options.variants if small or name != "float32"]
        # Alone, so that what it takes of the GPU's memory can be told.
        self._run([first], expected, self.figures["product"])
        with ThreadPoolExecutor(1) as thread:
            product = thread.submit(self._run, others, expected, self.figures["product"])
            self.figures["transformers"] = self._lower_precisions(expected)
            product.result()
        for name, found in self.figures["product"].items():
            if "errors" in found:
                # Without what is lost by storing the weights in float16, which is the same for all.
                found["computing"] = margin_errors(self._margins[name], self._margins[STORED], self._requests)

    def overflow(self) -> None:
        """Multiplies the massive value until float16 does not hold the residual stream, then a single product."""
        reached = self._massive.height
        self.figures["overflow"] = {}
        for height in OVERFLOWING:
            self._model.multiply_massive(height / reached)
            reached = height
            expected, peaks = self._margins_and_peaks()
            self._write_weights()
            figures: dict[str, Any] = {"residual": peaks["decoder residual"], "down": peaks["decoder down_proj out"]}
            self._run([name for name in self.options.variants if name != "float32"], expected, figures)
            self.figures["overflow"][f"{height:.0f}"] = figures
            self.options.save()

    def close(self) -> None:
        """Removes the weights."""
        shutil.rmtree(self.folder)

    def _row(self) -> torch.Tensor:
        """The margin row, float32."""
        head = self._model.model.lm_head.weight.data
        return (head[self._tokenizer.yes_id].float() - head[self._tokenizer.no_id].float()).clone()

    def _reference(self, row: torch.Tensor) -> Reference:
        reference = Reference(self._model.model, self._tokenizer, self._profile.image, None)
        reference._row = row
        return reference

    def _hidden(self) -> torch.Tensor:
        """What the head is given for each pair, `[pairs, hidden]`."""
        reference = self._reference(self._row())
        return torch.stack([reference.hidden(*pair) for pair in self._pairs])

    def _margins_and_peaks(self) -> tuple[np.ndarray, dict[str, float]]:
        with contextlib.closing(ActivationPeaks(self._model.model)) as peaks:
            hidden = self._hidden()
        return (hidden.double() @ self._row().double()).cpu().numpy(), peaks.figures()

    def _expected(self) -> np.ndarray:
        """Margins in float32, after they have been brought to a spread of several units."""
        started = time.perf_counter()
        margins, peaks = self._margins_and_peaks()
        power = round(math.log2(SPREAD / margins.std()))
        self._model.scale_margins(power)
        margins *= 2.0**power
        self.figures["float32"] = {
            "margins": {"mean": margins.mean(), "spread": margins.std(), "least": margins.min(), "most": margins.max()},
            "peaks": peaks,
            "seconds": round(time.perf_counter() - started, 1),
        }
        self._margins["float32 reference"] = margins.tolist()
        say(f"float32: {json.dumps(self.figures['float32'])}")
        self.options.save()
        return margins

    def _lower_precisions(self, expected: np.ndarray) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        row = self._row()
        for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
            # bfloat16 first: it holds the weights as they are.
            self._model.to(dtype)
            hidden = self._hidden()
            wide = (hidden.double() @ row.double()).cpu().numpy()
            self._margins[name] = wide.tolist()
            figures[name] = margin_errors(wide, expected, self._requests)
            narrow = (hidden @ row.to(dtype)).float().cpu().numpy()
            figures[f"{name}, head too"] = margin_errors(narrow, expected, self._requests)
            say(f"transformers in {name}: {json.dumps(figures[name])}")
        self._model.to(torch.float32)
        stored = (self._hidden().double() @ row.double()).cpu().numpy()
        self._margins[STORED] = stored.tolist()
        figures[STORED] = margin_errors(stored, expected, self._requests)
        return figures

    def _write_weights(self) -> None:
        started = time.perf_counter()
        weights = model_weights(self.architecture, "F16")
        clipped = weights.write(self.folder, TorchTensors(self._model, self._row()), lambda _done, _total: None)
        assert not clipped, clipped
        self.figures["write_s"] = round(time.perf_counter() - started, 1)
        self.figures["weights_gb"] = round((self.folder / weights.name).stat().st_size / 1e9, 2)
        for dialect, precision in ((d, p) for d in Dialect for p in (Precision.FP16, Precision.FP32)):
            write_graph_pair(self.folder, self.architecture, weights, dialect, precision)
        for part in ("text", "vision"):
            graph = self.folder / f"{part}.primitive.fp16.onnx"
            if graph.exists():
                rounded = halve_residual(graph, self.folder / f"{part}.{HALF_RESIDUAL}.fp16.onnx")
                assert rounded == self._residual_sums(part), (part, rounded)
        say(f"{self.figures['weights_gb']} GB of weights and the graphs written, {time.perf_counter() - started:.1f} s")

    def _residual_sums(self, part: str) -> int:
        text, vision = self.architecture.text, self.architecture.vision
        if part == "text":
            return 2 * text.layers + (0 if vision is None else len(vision.deepstack_layers))
        return 2 * vision.layers if vision is not None else 0

    def _run(self, variants: Sequence[str], expected: np.ndarray, figures: dict[str, Any]) -> None:
        """Scores the pairs with the product's engine, each variant in a process of its own, at the same time."""

        def one(variant: str) -> None:
            graphs, precision = VARIANTS[variant]
            out = self.folder / f"{variant}.json"
            command = [sys.executable, str(Path(__file__).with_name("product_margins.py")), self.name, str(self.folder)]
            command += [graphs, "--out", str(out), "--precision", precision, "--device", self.options.device]
            command += ["--requests", str(self.options.requests), "--documents", str(self.options.documents)]
            command += ["--sides", *map(str, self.options.sides)]
            path = {"PYTHONPATH": os.pathsep.join(sys.path)}  # under pytest the environment does not have it
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=400, check=False, env={**os.environ, **path}
            )
            if done.returncode != 0:
                figures[variant] = {"failed": done.stderr[-2000:]}
                say(f"{variant} FAILED: {done.stderr[-1500:]}")
                return
            found = json.loads(out.read_text(encoding="utf-8"))
            margins, again = found.pop("margins"), found.pop("margins_again")
            self._margins.setdefault(variant, margins)  # those of the model as it is, not as it overflows
            found["errors"] = margin_errors(margins, expected, self._requests)
            found["packing"] = margin_errors(again, margins, self._requests)
            figures[variant] = found
            say(f"product, {variant}: {json.dumps(found)}")
            self.options.save()

        with ThreadPoolExecutor(max(1, len(variants))) as threads:
            list(threads.map(one, variants))


def main() -> int:
    """Goes through the models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["0.6b", "vl-2b", "vl-8b"])
    parser.add_argument("--overflow", nargs="*", choices=MODELS, default=["0.6b"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where weights go; 18 GB for the largest")
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--sides", type=int, nargs=2, default=(160, 640), help="of pictures, in pixels")
    options = parser.parse_args()
    torch.backends.cuda.enable_cudnn_sdp(False)  # is built anew for every length that it meets
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    figures: dict[str, Any] = {"torch": torch.__version__}

    def save() -> None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")

    options.save = save
    failed = False
    for name in options.models:
        started = time.perf_counter()
        trial = Trial(name, options)
        figures[name] = trial.figures
        try:
            trial.compare()
            if name in options.overflow:
                trial.overflow()
        finally:
            trial.close()
        trial.figures["seconds"] = round(time.perf_counter() - started, 1)
        say(f"{name} done")
        save()
        del trial
        if options.device == "cuda":
            torch.cuda.empty_cache()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Large models' outliers, put into a model without changing what it computes.

Large rerankers have what a small one lacks: a few channels behind the norms, in the values and in front of the down
projection, that are tens to hundreds of times larger than the others, and single tokens that set off single channels
(SmoothQuant, arXiv:2211.10438; massive activations, arXiv:2402.17762). Steps that fit them leave nothing for the rest.

- A channel grows where what makes it is linear: rows of its producers times a factor, its columns in the weights that
  take it divided by the factor. In real numbers nothing changes.
- A spike is a pair of new channels of the gated layer, equal but for the signs of their down columns, so that what they
  add cancels. Gate and up point the same way, so a spike grows with the square of how well a token fits.

The head is not quantised, and so has none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file, save_file

from orin_rerank.engines.bundle import TOKENIZER_FILE, WEIGHTS_FILE, Bundle
from orin_rerank.graph.architecture import read_architecture
from orin_rerank.graph.builder import Precision
from orin_rerank.graph.places import Place, model_places
from orin_rerank.graph.weights import MARGIN_ROW
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Outliers", "bundle_with_outliers", "growth_of", "write_with_outliers"]


@dataclass(frozen=True, slots=True)
class Outliers:
    """What to put in.

    Attributes:
        channels: How many grow at every place; places without producers have none.
        factors: Least and largest factor; they are drawn evenly on a logarithmic scale.
        spikes: Pairs of spiking channels in every layer of the decoder.
        vision: Whether the vision encoder gets some too.
        seed: Of what is drawn.
    """

    channels: int = 4
    factors: tuple[float, float] = (50.0, 1000.0)
    spikes: int = 2
    vision: bool = False
    seed: int = 1


def bundle_with_outliers(bundle: Path, out: Path, outliers: Outliers) -> Bundle:
    """Exports a bundle's model with outliers, its matrices in float32, and its golden pairs along.

    Args:
        bundle: Folder of the bundle; its weight file is a checkpoint too.
        out: A folder that is made; the checkpoint goes to a folder inside, the bundle to another.
        outliers: What to put in.
    """
    manifest = Bundle.open(bundle).manifest
    checkpoint = write_with_outliers(bundle, out / "checkpoint", outliers)
    image = manifest.prompt.image
    golden = bundle / "golden"
    options = ExportOptions(
        name=f"{manifest.name}-outliers",
        max_tokens=manifest.prompt.max_tokens,
        min_pixels=None if image is None else image.min_pixels,
        max_pixels=None if image is None else image.max_pixels,
        precisions=(Precision.FP32,),
        golden=golden if golden.exists() else None,
    )
    return export_checkpoint(checkpoint, out / "bundle", options).bundle


def write_with_outliers(checkpoint: Path, out: Path, outliers: Outliers) -> Path:
    """Writes a checkpoint with outliers, all of it in float32.

    Args:
        checkpoint: A checkpoint in a single file of float16 or float32.
        out: A folder that is made.
        outliers: What to put in.
    """
    architecture = read_architecture(checkpoint)
    stored = load_file(checkpoint / WEIGHTS_FILE)
    stored.pop(MARGIN_ROW, None)
    tensors = {name: values.astype(np.float32) for name, values in stored.items()}
    rng = np.random.default_rng(outliers.seed)
    for place in model_places(architecture):
        if place.producers and (outliers.vision or not place.vision):
            _grow(tensors, place, outliers, rng)
        if place.name.endswith(".down"):
            _add_spikes(tensors, place, outliers, rng)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    text["intermediate_size"] += 2 * outliers.spikes
    for part in (config, text):
        part.pop("torch_dtype", None)
        part["dtype"] = "float32"
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (out / TOKENIZER_FILE).write_bytes((checkpoint / TOKENIZER_FILE).read_bytes())
    save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, out / WEIGHTS_FILE)
    return out


def _factors(outliers: Outliers, count: int, rng: np.random.Generator) -> np.ndarray:
    low, high = np.log(outliers.factors)
    return np.exp(rng.uniform(low, high, count)).astype(np.float32)


def growth_of(place: Place, outliers: Outliers, rng: np.random.Generator) -> np.ndarray:
    """By how much the rows that make a place's channels grow: 1 but for a few."""
    by_row = np.ones(place.producer_rows.max() + 1, np.float32)
    chosen = rng.choice(len(by_row), outliers.channels, replace=False)
    by_row[chosen] = _factors(outliers, outliers.channels, rng)
    return by_row


def _grow(tensors: dict[str, np.ndarray], place: Place, outliers: Outliers, rng: np.random.Generator) -> None:
    rows = place.producer_rows
    by_row = growth_of(place, outliers, rng)
    for producer in place.producers:
        part = tensors[producer.tensor][producer.begin : producer.begin + len(by_row)]
        part *= by_row.reshape(-1, *[1] * (part.ndim - 1))
    for name in place.weights:
        tensors[name] /= by_row[rows]


def _add_spikes(tensors: dict[str, np.ndarray], place: Place, outliers: Outliers, rng: np.random.Generator) -> None:
    (down,) = place.weights
    gate, up = (down.replace("down_proj", part) for part in ("gate_proj", "up_proj"))
    typical = [np.median(np.linalg.norm(tensors[name], axis=1)) for name in (gate, up)]
    fits = rng.normal(size=(outliers.spikes, tensors[gate].shape[1]))
    # In a unit that the norm's own outliers do not count in, and each pair is equal.
    fits *= np.median(np.abs(tensors[gate]), axis=0)
    fits = np.repeat(fits / np.linalg.norm(fits, axis=1, keepdims=True), 2, axis=0)
    sizes = np.repeat(np.sqrt(_factors(outliers, outliers.spikes, rng)), 2)[:, None]
    for name, size in zip((gate, up), typical, strict=True):
        tensors[name] = np.concatenate([tensors[name], (fits * sizes * size).astype(np.float32)])
    column = np.median(np.abs(tensors[down])) * rng.choice((-1.0, 1.0), (tensors[down].shape[0], outliers.spikes))
    pairs = np.stack([column, -column], axis=2).reshape(len(column), -1)
    tensors[down] = np.concatenate([tensors[down], pairs.astype(np.float32)], axis=1)

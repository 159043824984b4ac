"""Packed margins against transformers, pair by pair, on random models of many shapes."""

from __future__ import annotations

import logging
import os
import random
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import (  # noqa: E402
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from engines.running import (  # noqa: E402
    make_encoder,
    make_engine,
    make_runner,
    margins_of,
    noise_picture,
    open_bundle,
    pairs_of,
    random_requests,
    random_split,
)
from graph.checkpoints import IMAGE_PAD, TOKENIZER, VIDEO_PAD, VISION_END, VISION_START, VOCABULARY  # noqa: E402
from oracle.graph_reference import Reference, load_reference  # noqa: E402
from orin_rerank.graph.builder import Dialect, Precision  # noqa: E402
from orin_rerank.graph.checkpoint import Checkpoint  # noqa: E402
from orin_rerank.graph.weights import MARGIN_ROW  # noqa: E402
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint  # noqa: E402
from orin_rerank.prompt.tokenizer import PromptTokenizer  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from engines.running import Pair
    from orin_rerank.engines.bundle import Bundle

pytestmark = pytest.mark.oracle

_log = logging.getLogger(__name__)
TO_REFERENCE = 1e-4
BETWEEN_PACKINGS = 1e-5


@dataclass(frozen=True)
class Shape:
    """A random model."""

    head_dim: int = 64
    heads: tuple[int, int] = (4, 2)
    hidden: int = 96
    layers: int = 3
    tied: bool = True
    dtype: str = "float16"
    taps: tuple[int, ...] | None = (0, 1, 2)
    sections: tuple[int, int, int] | None = (12, 10, 10)
    theta: float = 1e6
    vision: tuple[int, int, int] = (4, 64, 2)
    patch: int = 16
    merge: int = 2
    positions: int = 64
    shards: bool = False
    seed: int = 0

    @property
    def vl(self) -> bool:
        return self.taps is not None


SHAPES = {
    "vl-tied-64": Shape(),
    "vl-untied-128-bf16-sharded": Shape(
        128, (4, 1), 64, 4, tied=False, dtype="bfloat16", taps=(1, 3), sections=(24, 20, 20), shards=True, seed=1
    ),
    "vl-32-fp32-one-tap": Shape(
        32, (3, 3), 80, 2, dtype="float32", taps=(2,), sections=(6, 5, 5), vision=(3, 48, 3), patch=8, seed=2
    ),
    "vl-32-uneven-sections": Shape(32, (8, 2), 64, 5, tied=False, sections=(8, 6, 2), taps=(0, 2, 3), seed=3),
    "vl-as-many-taps-as-layers": Shape(64, (2, 1), 48, 2, taps=(0, 3), seed=4),
    "vl-taps-out-of-order": Shape(64, (2, 2), 48, 3, taps=(3, 0, 2), seed=5),
    "vl-sections-by-default": Shape(32, (2, 2), 48, 3, sections=None, taps=(1,), seed=6),
    "vl-no-taps": Shape(64, (2, 1), 48, 2, taps=(), seed=7),
    "text-tied-64": Shape(taps=None, sections=None, seed=8),
    "text-untied-128-bf16": Shape(
        128, (4, 1), 64, 4, tied=False, dtype="bfloat16", taps=None, sections=None, theta=1e4, seed=9
    ),
    "text-32-fp32-sharded": Shape(32, (4, 4), 80, dtype="float32", taps=None, sections=None, shards=True, seed=10),
}


def fresh_shape(seed: int) -> Shape:
    rng = random.Random(seed)
    head_dim = rng.choice((32, 64, 128))
    half, kv = head_dim // 2, rng.choice((1, 2, 3))
    height = rng.randint(1, half // 3)
    width = rng.randint(1, half // 3)
    depth = rng.randint(1, 5)
    layers = rng.randint(1, 5)
    vision_heads = rng.choice((1, 2, 3))
    vl = rng.random() < 0.75
    return Shape(
        head_dim=head_dim,
        heads=(kv * rng.choice((1, 2, 4)), kv),
        hidden=rng.choice((48, 64, 96)),
        layers=layers,
        tied=rng.random() < 0.5,
        dtype=rng.choice(("float16", "bfloat16", "float32")),
        taps=tuple(sorted(rng.sample(range(depth), rng.randint(0, min(depth, layers, 3))))) if vl else None,
        sections=(half - height - width, height, width) if vl else None,
        theta=rng.choice((1e4, 1e6, 5e6)),
        vision=(depth, vision_heads * rng.choice((16, 24, 32)), vision_heads),
        patch=rng.choice((8, 16)),
        merge=rng.choice((1, 2, 2)),
        positions=rng.choice((4, 9, 16, 48)) ** 2,
        shards=rng.random() < 0.5,
        seed=seed,
    )


def _rope(shape: Shape) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.theta}
    if shape.sections is not None:
        rope |= {"mrope_section": list(shape.sections), "mrope_interleaved": True}
    return rope


def save_reference(folder: Path, shape: Shape) -> None:
    """Saves a random model with transformers; weights are large enough for attention to be far from uniform."""
    text = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.hidden * 2,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads[0],
        "num_key_value_heads": shape.heads[1],
        "head_dim": shape.head_dim,
        "vocab_size": VOCABULARY,
        "rope_parameters": _rope(shape),
        "max_position_embeddings": 4096,
    }
    torch.manual_seed(shape.seed)
    if shape.vl:
        depth, width, heads = shape.vision
        vision = {
            "depth": depth,
            "hidden_size": width,
            "intermediate_size": width * 2,
            "num_heads": heads,
            "out_hidden_size": shape.hidden,
            "patch_size": shape.patch,
            "spatial_merge_size": shape.merge,
            "num_position_embeddings": shape.positions,
            "deepstack_visual_indexes": list(shape.taps or ()),
        }
        ids = {
            "image_token_id": IMAGE_PAD,
            "video_token_id": VIDEO_PAD,
            "vision_start_token_id": VISION_START,
            "vision_end_token_id": VISION_END,
        }
        config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=shape.tied, **ids)
        model = Qwen3VLForConditionalGeneration(config)
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**text, tie_word_embeddings=shape.tied))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.2)
            elif "embed" in name or "lm_head" in name:
                parameter.normal_(0.0, 0.1)
            else:
                parameter.normal_(0.0, 1.3 / (parameter[0].numel() ** 0.5))
    model.to(getattr(torch, shape.dtype)).save_pretrained(folder, max_shard_size="200KB" if shape.shards else "5GB")
    shutil.copy(TOKENIZER, folder / "tokenizer.json")


def pictures_for(patch: int) -> list:
    sizes = ((4, 4), (6, 10), (2, 12), (8, 4), (4, 4))
    return [noise_picture(i, rows * patch, columns * patch) for i, (rows, columns) in enumerate(sizes)]


@dataclass
class Case:
    """A model in both implementations, and pairs with the reference's margins."""

    bundle: Bundle
    pairs: list[Pair]
    margins: np.ndarray


def make_case(folder: Path, shape: Shape) -> Case:
    checkpoint, out = folder / "checkpoint", folder / "bundle"
    save_reference(checkpoint, shape)
    assert (checkpoint / "model.safetensors").exists() != shape.shards
    options = ExportOptions(max_tokens=1024, min_pixels=1, max_pixels=100 * shape.patch**2)
    export_checkpoint(checkpoint, out, options)
    bundle = open_bundle(out)
    requests = random_requests(
        make_encoder(bundle), random.Random(shape.seed), 4, 6, pictures_for(shape.patch) if shape.vl else []
    )
    pairs = pairs_of(requests)
    tokenizer = PromptTokenizer.from_file(out / "tokenizer.json")
    image = bundle.manifest.prompt.image
    # The bundle's own weights, so that both round alike; its margin row is compared with the head separately.
    row = Checkpoint.open(out).read(MARGIN_ROW)
    reference = Reference(load_reference(out, vl=shape.vl), tokenizer, image, row)
    margins = np.array([reference.margin(*pair) for pair in pairs])
    # And the checkpoint itself, as transformers loads it: float16 and float32 are stored exactly, BF16 nearly.
    source = Reference(load_reference(checkpoint, vl=shape.vl), tokenizer, image, None)
    originals = np.array([source.margin(*pair) for pair in pairs])
    assert np.abs(margins - originals).max() < TO_REFERENCE
    assert margins.std() > 0.1, "the pairs hardly differ, so that equality would mean little"
    return Case(bundle, pairs, margins)


@pytest.fixture(scope="module", params=SHAPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp(request.param), SHAPES[request.param])


def compare(case: Case, dialect: Dialect, packings: int, record) -> None:
    rng = random.Random(1)
    engine = make_engine(case.bundle, dialect)
    every = range(len(case.pairs))
    alone = margins_of(make_runner(case.bundle, engine, remember=False), case.pairs, [[i] for i in every])
    results = [alone, margins_of(make_runner(case.bundle, engine), case.pairs, [list(every)])]
    for packing in range(packings):
        runner = make_runner(case.bundle, engine, remember=packing % 2 == 0)
        results.append(margins_of(runner, case.pairs, random_split(rng, len(case.pairs))))
    spread = np.ptp(results, axis=0).max()
    off = np.abs(np.array(results) - case.margins).max()
    record("largest_difference_from_reference", f"{off:.2e}")
    record("largest_difference_between_packings", f"{spread:.2e}")
    _log.info("%s: reference %.2e, packings %.2e, deviation %.2f", dialect.value, off, spread, case.margins.std())
    assert off < TO_REFERENCE
    assert spread < BETWEEN_PACKINGS


@pytest.mark.parametrize("dialect", Dialect)
def test_margins_equal_the_reference_in_any_packing(case: Case, dialect: Dialect, record_property) -> None:
    compare(case, dialect, 6, record_property)


@pytest.mark.parametrize("offset", range(4))
def test_fresh_random_shapes(tmp_path: Path, offset: int, record_property) -> None:
    seed = int(os.environ.get("ORIN_RERANK_SEED", "20260101")) + offset
    shape = fresh_shape(seed)
    _log.info("%s", shape)
    case = make_case(tmp_path, shape)
    for dialect in Dialect:
        compare(case, dialect, 3, record_property)
    assert case.bundle.graph(Dialect.PRIMITIVE, Precision.FP16)

"""Whatever wrapped a model when it was saved, its tensors are found; and none that it has is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from orin_rerank.errors import CheckpointError
from orin_rerank.graph.checkpoint import Checkpoint, TensorEntry
from orin_rerank.graph.checkpoint_names import account_for, with_canonical_names

TEXT = ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight"]
VL = [
    "model.language_model.embed_tokens.weight",
    "model.language_model.norm.weight",
    "model.visual.patch_embed.proj.weight",
    "model.visual.merger.norm.bias",
]


def made_of(names: list[str]) -> Checkpoint:
    entries = {name: TensorEntry(Path("f"), "F32", (1,), 4 * i, 4 * i + 4) for i, name in enumerate(names)}
    return Checkpoint(Path(), entries)


def moved(names: list[str], old: str, new: str) -> list[str]:
    return [new + name.removeprefix(old) if name.startswith(old) else name for name in names]


@pytest.mark.parametrize("head", [[], ["lm_head.weight"]])
@pytest.mark.parametrize(
    ("vl", "stored", "replaced"),
    [
        (False, TEXT, {}),
        (True, VL, {}),
        (False, moved(TEXT, "model.", ""), {"": "model."}),
        (False, moved(TEXT, "", "base_model.model."), {"base_model.model.model.": "model."}),
        (False, moved(TEXT, "", "module._orig_mod."), {"module._orig_mod.model.": "model."}),
        (
            True,
            moved(moved(VL, "model.language_model.", "language_model.model."), "model.visual.", "visual."),
            {"language_model.model.": "model.language_model.", "visual.": "model.visual."},
        ),
        (
            True,
            moved(VL, "model.", ""),
            {"language_model.": "model.language_model.", "visual.": "model.visual."},
        ),
        (
            True,
            moved(moved(VL, "model.language_model.", "model."), "model.visual.", "model.visual."),
            {"model.": "model.language_model."},
        ),
    ],
)
def test_prefixes(vl: bool, stored: list[str], replaced: dict[str, str], head: list[str]) -> None:
    canonical = VL if vl else TEXT
    checkpoint, prefixes = with_canonical_names(made_of([*stored, *head]), vl=vl)
    assert set(checkpoint.entries) == {*canonical, *head}
    assert prefixes == replaced
    for old, new in zip(stored, canonical, strict=True):  # and each is itself
        assert checkpoint.entries[new].begin == 4 * stored.index(old)


@pytest.mark.parametrize("head", ["module.lm_head.weight", "language_model.lm_head.weight", "module.score.weight"])
def test_a_head_is_found_wherever_it_is(head: str) -> None:
    checkpoint, _ = with_canonical_names(made_of([*TEXT, head]), vl=False)
    assert ".".join(head.split(".")[-2:]) in checkpoint


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight",
        "model.layers.0.mlp.up_proj.lora_B.weight",
        "model.layers.0.mlp.up_proj.base_layer.weight",
        "model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.score.modules_to_save.default.weight",
    ],
)
def test_adapters_that_were_not_merged_are_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="merge_and_unload") as caught:
        with_canonical_names(made_of([*TEXT, name]), vl=False)
    assert caught.value.item == name


def test_two_of_a_part_are_refused() -> None:
    for name in ("ema.model.embed_tokens.weight", "ema.lm_head.weight"):
        with pytest.raises(CheckpointError, match="stands there twice"):
            with_canonical_names(made_of([*TEXT, "lm_head.weight", name]), vl=False)
    with pytest.raises(CheckpointError, match="the same name as another"):
        with_canonical_names(made_of([*moved(TEXT, "", "module."), "model.norm.weight"]), vl=False)


def test_every_tensor_of_the_model_is_accounted_for() -> None:
    extra = ["v_head.weight", "orin_rerank.margin_row", "model.rotary_emb.inv_freq"]
    assert account_for(made_of([*TEXT, *extra]), TEXT, vl=False) == ["v_head.weight"]
    for name in ("model.layers.0.self_attn.q_proj.bias", "model.layers.1.mlp.up_proj.weight", "model.visual.x"):
        with pytest.raises(CheckpointError, match="nothing uses it") as caught:
            account_for(made_of([*TEXT, name]), TEXT, vl=False)
        assert caught.value.item == name

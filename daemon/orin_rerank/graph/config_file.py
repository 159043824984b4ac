"""A checkpoint's config.json as it is written, and what in it rules a model out before anything else is looked at."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from orin_rerank.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CONFIG_FILE", "check_rope_type", "is_classifier", "is_vl", "read_config"]

CONFIG_FILE: Final = "config.json"
_CLASSIFIERS: Final = {"Qwen3ForSequenceClassification"}
_ARCHITECTURES: Final = {
    "qwen3_vl": {"Qwen3VLForConditionalGeneration"},
    "qwen3": {"Qwen3ForCausalLM", *_CLASSIFIERS},
}
"""By `model_type`: what has a head that says "yes" or "no", or was converted from one that has."""
_QUANTISED: Final = ("quantization_config", "compression_config")


def read_config(checkpoint: Path) -> dict[str, Any]:
    """Reads config.json of a checkpoint folder.

    Args:
        checkpoint: The folder.

    Raises:
        CheckpointError: If there is none, or it describes no reranker, a quantised one or scaled rotary positions; the
            item names the key.
    """
    path = checkpoint / CONFIG_FILE
    _check_adapter(checkpoint)
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError("the checkpoint has no config.json", item=str(path)) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"config.json cannot be read: {error}", item=str(path)) from None
    if not isinstance(raw, dict):
        raise CheckpointError("config.json is no object", item=str(path))
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in _ARCHITECTURES:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise CheckpointError(f"{kind!r} is not a reranker architecture known here ({known})", item="model_type")
    _check_architectures(raw.get("architectures"), _ARCHITECTURES[kind])
    text = raw.get("text_config")
    parts = {"": raw, "text_config.": text if isinstance(text, dict) else {}}
    for prefix, config in parts.items():
        for key in _QUANTISED:
            if config.get(key):
                raise CheckpointError(
                    f"the checkpoint is quantised ({_method(config[key])}); export the one it was made from",
                    item=f"{prefix}{key}",
                )
        # Before transformers looks for the factors of a scaling that is refused in any case.
        check_rope_type(config, prefix)
    return raw


def is_vl(config: dict[str, Any]) -> bool:
    """Whether a configuration is of the family with images."""
    return bool(config["model_type"] == "qwen3_vl")


def is_classifier(config: dict[str, Any]) -> bool:
    """Whether the head was reduced to a classifier's, by a conversion to sequence classification."""
    return bool(_CLASSIFIERS & set(config.get("architectures") or ()))


def check_rope_type(config: dict[str, Any], prefix: str) -> None:
    """Refuses scaled rotary positions, in the spellings of transformers 4 and 5.

    Args:
        config: Of the decoder.
        prefix: What stands before its keys, for errors.

    Raises:
        CheckpointError: See above; the item names the key.
    """
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name)
        if not isinstance(rope, dict):
            continue
        for key in ("rope_type", "type"):
            if rope.get(key, "default") not in ("default", "mrope"):
                raise CheckpointError(f"rotary scaling {rope[key]!r} is not supported", item=f"{prefix}{name}.{key}")


def _check_adapter(checkpoint: Path) -> None:
    adapter = checkpoint / "adapter_config.json"
    if adapter.exists() and not any(checkpoint.glob("model*.safetensors")):
        raise CheckpointError(
            "holds a LoRA adapter without its model: merge them with PEFT's merge_and_unload, and save the whole",
            item=str(adapter),
        )


def _check_architectures(names: Any, known: set[str]) -> None:
    if names is None:
        return
    if not isinstance(names, list) or not known & {str(name) for name in names}:
        raise CheckpointError(f"{names!r} is no reranker: {' or '.join(sorted(known))} is", item="architectures")


def _method(value: Any) -> str:
    method = value.get("quant_method") or value.get("quant_algo") if isinstance(value, dict) else None
    return str(method or "by an unnamed method")

"""Tensor names of a checkpoint, brought to the form that transformers writes.

Published checkpoints and merged ones (PEFT's merge_and_unload) have these names already. Others keep what wrapped the
model while it was trained: `module.`, `_orig_mod.`, `base_model.model.`; base models are saved without the leading
`model.`; older tools say `language_model.model.` and `visual.`. The parts inside are the same everywhere, so one tensor
of each part shows its prefix.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from orin_rerank.errors import CheckpointError
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.weights import MARGIN_ROW

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CLASSIFIER", "HEAD", "account_for", "with_canonical_names"]

HEAD: Final = "lm_head.weight"
CLASSIFIER: Final = "score.weight"
"""The head of a checkpoint that was converted to sequence classification, `[labels, hidden]`."""

_DECODER: Final = {True: "model.language_model.", False: "model."}
_VISION: Final = "model.visual."
_SHOWS_DECODER: Final = "embed_tokens.weight"
_SHOWS_VISION: Final = "patch_embed.proj.weight"
_ADAPTER: Final = re.compile(r"(^|\.)(lora_[A-Za-z_]+|base_layer|modules_to_save|original_module)(\.|$)")
_BUFFER: Final = re.compile(r"(^|\.)(inv_freq|original_inv_freq|position_ids)$")


def with_canonical_names(checkpoint: Checkpoint, *, vl: bool) -> tuple[Checkpoint, dict[str, str]]:
    """Renames a checkpoint's tensors to what transformers calls them.

    Args:
        checkpoint: With names of any common form.
        vl: Whether it is of the family with images.

    Returns:
        The same tensors by their canonical names, and the prefixes that were replaced, each with what replaced it.

    Raises:
        CheckpointError: If it holds adapters that were not merged, or a part twice; the item names a tensor.
    """
    names = sorted(checkpoint.entries)
    adapter = next((name for name in names if _ADAPTER.search(name)), None)
    if adapter is not None:
        raise CheckpointError(
            "is part of an adapter that was not merged: merge it first, with PEFT's merge_and_unload", item=adapter
        )
    parts = {_SHOWS_DECODER: _DECODER[vl], **({_SHOWS_VISION: _VISION} if vl else {})}
    prefixes = {stored: prefix for suffix, prefix in parts.items() for stored in _prefixes(names, suffix)}
    heads = {stored + suffix: suffix for suffix in (HEAD, CLASSIFIER) for stored in _prefixes(names, suffix)}
    longest_first = sorted(prefixes, key=len, reverse=True)  # a decoder's may be empty, and part of the other's
    entries = {}
    for name in names:
        stored = next((prefix for prefix in longest_first if name.startswith(prefix)), None)
        renamed = heads.get(name) or (name if stored is None else prefixes[stored] + name[len(stored) :])
        if renamed in entries:
            raise CheckpointError("would have the same name as another tensor, once renamed", item=name)
        entries[renamed] = checkpoint.entries[name]
    return Checkpoint(checkpoint.folder, entries), {a: b for a, b in prefixes.items() if a != b}


def account_for(checkpoint: Checkpoint, used: Iterable[str], *, vl: bool) -> list[str]:
    """Looks for tensors that nothing uses.

    Args:
        checkpoint: With canonical names.
        used: The names that the graphs and the head use.
        vl: Whether it is of the family with images.

    Returns:
        Unused tensors outside the decoder and the vision encoder, such as the head of another task.

    Raises:
        CheckpointError: If one lies inside, such as a bias or a further layer: config.json describes another model.
    """
    unused = sorted(name for name in checkpoint.entries.keys() - {*used, MARGIN_ROW} if not _BUFFER.search(name))
    inside = next((name for name in unused if name.startswith((_DECODER[vl], _VISION))), None)
    if inside is not None:
        raise CheckpointError("belongs to a model other than config.json describes: nothing uses it", item=inside)
    return unused


def _prefixes(names: Iterable[str], suffix: str) -> list[str]:
    """What stands before a suffix, where a name ends with it.

    Raises:
        CheckpointError: If two names do.
    """
    holders = [name for name in names if name == suffix or name.endswith(f".{suffix}")]
    if len(holders) > 1:
        raise CheckpointError(f"stands there twice, also as {holders[0]}", item=holders[1])
    return [name[: -len(suffix)] for name in holders]

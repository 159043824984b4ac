"""Margins of single pairs from transformers' own model classes in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import Qwen3ForCausalLM, Qwen3VLForConditionalGeneration

from orin_rerank.prompt.patches import patch_width, write_patches
from orin_rerank.prompt.templates import IMAGE_PAD
from orin_rerank.prompt.tokenizer import PromptTokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.prompt.encoded import EncodedSegment
    from orin_rerank.prompt.profile import ImageProfile


def load_reference(folder: Path, *, vl: bool) -> torch.nn.Module:
    """Loads a checkpoint or a bundle; a tensor that is missing or has another shape is an error.

    The head of an untied model is no part of a bundle, and margins are read off the margin row, so it may be missing.
    """
    kind = Qwen3VLForConditionalGeneration if vl else Qwen3ForCausalLM
    model, info = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert set(info["missing_keys"]) <= {"lm_head.weight"}, info["missing_keys"]
    assert not info["mismatched_keys"], info["mismatched_keys"]
    return model.eval()


class Reference:
    """Scores pairs one at a time, as the reference script does.

    Args:
        model: From `load_reference`.
        tokenizer: Names the ids of images, "yes" and "no".
        image: How the model takes images.
        row: The margin row; None takes the difference of two rows of the model's head.
    """

    def __init__(
        self, model: torch.nn.Module, tokenizer: PromptTokenizer, image: ImageProfile | None, row: np.ndarray | None
    ) -> None:
        self._model = model
        self._image = image
        self._pad = tokenizer.special_id(IMAGE_PAD) if image is not None else -1
        head = model.lm_head.weight
        self._row = head[tokenizer.yes_id] - head[tokenizer.no_id] if row is None else torch.from_numpy(row)

    def margin(self, prefix: EncodedSegment, document: EncodedSegment) -> float:
        """logit(yes) - logit(no) of a pair."""
        with torch.no_grad():
            return float(self.hidden(prefix, document) @ self._row)

    def hidden(self, prefix: EncodedSegment, document: EncodedSegment) -> torch.Tensor:
        """What the head is given, `[hidden]`, on the model's device."""
        ids = torch.from_numpy(np.concatenate((prefix.ids, document.ids)).astype(np.int64))[None]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
        images = (*prefix.images, *document.images)
        if self._image is not None:
            inputs["mm_token_type_ids"] = (ids == self._pad).int()
        if images:
            patches = []
            for image in images:
                out = np.empty((image.grid[0] * image.grid[1], patch_width(self._image)), np.float32)
                write_patches(image.pixels, self._image, out)
                patches.append(torch.from_numpy(out))
            inputs["pixel_values"] = torch.cat(patches)
            inputs["image_grid_thw"] = torch.tensor([[1, *image.grid] for image in images])
        device = self._row.device
        moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
        with torch.no_grad():
            return self._model.model(**moved).last_hidden_state[0, -1]

"""The opponent: transformers' own model, as its users run it, on the weights of the same bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3VLForConditionalGeneration

from orin_rerank.engines.bundle import TOKENIZER_FILE
from orin_rerank.prompt.encoded import EncodedImage, EncodedRequest, EncodedSegment
from orin_rerank.prompt.patches import patch_width, write_patches
from orin_rerank.prompt.profile import ImageProfile
from orin_rerank.prompt.tokenizer import PromptTokenizer


@dataclass
class TransformersModel:
    """Scores pairs in left-padded batches, float32, scaled-dot-product attention."""

    model: torch.nn.Module
    row: torch.Tensor
    image: ImageProfile
    image_token: int

    @classmethod
    def load(cls, bundle: Path, image: ImageProfile, threads: int) -> TransformersModel:
        torch.set_num_threads(threads)
        model = Qwen3VLForConditionalGeneration.from_pretrained(
            bundle, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        tokenizer = PromptTokenizer.from_file(bundle / TOKENIZER_FILE)
        head = model.lm_head.weight
        row = (head[tokenizer.yes_id] - head[tokenizer.no_id]).detach()
        return cls(model, row, image, model.config.image_token_id)

    @torch.inference_mode()
    def score(self, request: EncodedRequest, batch_size: int) -> np.ndarray:
        """Margins `[documents]`; documents of like length are batched, which wastes least on padding."""
        order = sorted(range(len(request.documents)), key=lambda i: len(request.documents[i]))
        margins = np.empty(len(order), np.float32)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            margins[chosen] = self._batch(request.prefix, [request.documents[i] for i in chosen])
        return margins

    def _batch(self, prefix: EncodedSegment, documents: list[EncodedSegment]) -> np.ndarray:
        rows = [np.concatenate([prefix.ids, document.ids]) for document in documents]
        longest = max(map(len, rows))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, longest - len(row) :] = torch.from_numpy(row)
            mask[i, longest - len(row) :] = 1
        images = [image for document in documents for image in (*prefix.images, *document.images)]
        extra = self._pixels(images) if images else {}
        hidden = self.model.model(
            input_ids=ids,
            attention_mask=mask if len(rows) > 1 else None,
            mm_token_type_ids=(ids == self.image_token).int(),
            use_cache=False,
            **extra,
        ).last_hidden_state[:, -1]
        return (hidden @ self.row).numpy()

    def _pixels(self, images: list[EncodedImage]) -> dict[str, torch.Tensor]:
        patches = []
        for image in images:
            out = np.empty((image.grid[0] * image.grid[1], patch_width(self.image)), np.float32)
            write_patches(image.pixels, self.image, out)
            patches.append(out)
        grids = torch.tensor([[1, *image.grid] for image in images])
        return {"pixel_values": torch.from_numpy(np.concatenate(patches)), "image_grid_thw": grids}

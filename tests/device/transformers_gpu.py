"""transformers on the GPU as its users run it: bf16, scaled-dot-product attention, left-padded batches."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3VLForConditionalGeneration

from orin_rerank.prompt.encoded import EncodedImage, EncodedRequest
from orin_rerank.prompt.patches import patch_width, write_patches
from orin_rerank.prompt.profile import ImageProfile

Batch = tuple[list[int], dict[str, torch.Tensor]]


@dataclass
class TransformersOnGpu:
    """The model, and the row by which its last hidden state becomes a margin."""

    model: torch.nn.Module
    row: torch.Tensor
    image: ImageProfile
    device: str

    @classmethod
    def load(cls, folder: Path, image: ImageProfile, row: np.ndarray, dtype: torch.dtype) -> TransformersOnGpu:
        """Loads what `write_model` wrote."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = Qwen3VLForConditionalGeneration.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", device_map=device if device == "cuda" else None
        ).eval()
        return cls(model, torch.from_numpy(row).to(device), image, device)

    def batches(self, request: EncodedRequest, size: int, *, by_length: bool) -> list[Batch]:
        """Inputs on the GPU, ready to run; documents in the request's order, or those of like length together."""
        order = list(range(len(request.documents)))
        if by_length:
            order.sort(key=lambda i: len(request.documents[i]))
        return [self._batch(request, order[start : start + size]) for start in range(0, len(order), size)]

    @torch.inference_mode()
    def score(self, batches: list[Batch]) -> np.ndarray:
        """Margins `[documents]` of one request's batches."""
        margins = np.empty(sum(len(chosen) for chosen, _ in batches), np.float32)
        results = []
        for _, inputs in batches:
            hidden = self.model.model(use_cache=False, **inputs).last_hidden_state[:, -1]
            results.append(hidden.float() @ self.row)
        for (chosen, _), result in zip(batches, results, strict=True):
            margins[chosen] = result.cpu().numpy()
        return margins

    def _batch(self, request: EncodedRequest, chosen: list[int]) -> Batch:
        documents = [request.documents[i] for i in chosen]
        rows = [np.concatenate([request.prefix.ids, document.ids]) for document in documents]
        longest = max(map(len, rows))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, longest - len(row) :] = torch.from_numpy(row)
            mask[i, longest - len(row) :] = 1
        inputs = {"input_ids": ids, "attention_mask": mask}
        images = [image for document in documents for image in (*request.prefix.images, *document.images)]
        if images:
            inputs.update(self._pixels(images))
            if "mm_token_type_ids" in inspect.signature(self.model.model.forward).parameters:
                inputs["mm_token_type_ids"] = (ids == self.model.config.image_token_id).int()
        return chosen, {name: value.to(self.device) for name, value in inputs.items()}

    def _pixels(self, images: list[EncodedImage]) -> dict[str, torch.Tensor]:
        patches: dict[bytes, np.ndarray] = {}
        for image in images:
            if image.digest not in patches:
                patches[image.digest] = np.empty((image.grid[0] * image.grid[1], patch_width(self.image)), np.float32)
                write_patches(image.pixels, self.image, patches[image.digest])
        grids = torch.tensor([[1, *image.grid] for image in images])
        pixels = torch.from_numpy(np.concatenate([patches[image.digest] for image in images]))
        return {"pixel_values": pixels.to(self.model.dtype), "image_grid_thw": grids}

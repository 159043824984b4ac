"""Bi-encoder and cross-encoder losses over one batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .augment import augment
from .batches import Batch
from .data import TrainingData
from .grids import GRIDS
from .model import HIDDEN, Features
from .sequence import Assembler, Constant, Image, Segment, Text

_TAIL_OF_FIRST_GRID = 0.7  # share of batches at the square grid
_OTHER_INSTRUCTION = 0.25


@dataclass
class Dials:
    """Scalars on the device that the schedule turns while captured graphs keep running."""

    device: torch.device
    strength: Tensor = field(init=False)
    distil: Tensor = field(init=False)
    contrast: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.strength = torch.ones((), device=self.device)
        self.distil = torch.ones((), device=self.device)
        self.contrast = torch.ones((), device=self.device)


@dataclass
class Encoded:
    """One batch after the bi-encoder: image features, similarities and the contrastive loss."""

    query: Features | None
    document: Features | None
    query_grid: Tensor
    document_grid: Tensor
    similarity: Tensor
    scale: Tensor
    clash: Tensor
    loss: Tensor


class Objective(nn.Module):
    """Losses, with the two small heads that only training needs."""

    def __init__(self, assembler: Assembler, data: TrainingData, dials: Dials, teacher_width: int) -> None:
        super().__init__()
        self.assembler = assembler
        self.fast = assembler.fast
        self.data = data
        self.dials = dials
        device = assembler.fast.device
        self.log_scale = nn.Parameter(torch.tensor(2.66, device=device))
        self.to_teacher = nn.Linear(HIDDEN, teacher_width).to(device)

    def _grid(self) -> Tensor:
        device = self.fast.device
        other = torch.randint(1, len(GRIDS), (1,), device=device)
        return torch.where(torch.rand(1, device=device) < _TAIL_OF_FIRST_GRID, 0, other)

    def _instruction(self) -> Tensor:
        device = self.fast.device
        count = len(self.assembler.prefix_lengths)
        other = torch.randint(1, count, (1,), device=device)
        return torch.where(torch.rand(1, device=device) < _OTHER_INSTRUCTION, other, 0)

    def _see(self, pictures: Tensor | None, grid: Tensor) -> Features | None:
        if pictures is None:
            return None
        data = self.data
        patches = augment(
            data.pixels[pictures],
            data.picture_fixed[pictures],
            data.picture_mono[pictures],
            grid,
            self.fast.tables,
            self.dials.strength,
        )
        return self.fast.vision(patches, grid)

    def _embedding(self, features: Features | None, grid: Tensor, text: Text | None) -> Tensor:
        segments: list[Segment] = [Image(features, grid)] if features is not None else []
        if text is not None:
            segments.append(text)
        segments.append(Constant(self.assembler.end))
        return self.assembler.run(segments, None)

    def _taught(self, embedding: Tensor, topics: Tensor) -> Tensor:
        """How far embeddings are from the mean teacher vector of their topics; 0 where none is known."""
        teacher, rows = self.data.teacher, self.data.teacher_rows
        if teacher is None or rows is None:
            return embedding.new_zeros(())
        row = torch.where(topics >= 0, rows[topics.clamp(min=0)], -1)
        known = (row >= 0).float()[..., None]
        target = (teacher[row.clamp(min=0)] * known).sum(1)
        weight = (row >= 0).any(1).float()
        away = 1 - F.cosine_similarity(self.to_teacher(embedding.float()), target, dim=-1)
        return (away * weight).sum() / (weight.sum() + 1)

    def encode(self, batch: Batch) -> Encoded:
        """Bi-encoder pass: symmetric contrast over the batch and distance to the teacher."""
        query_grid, document_grid = self._grid(), self._grid()
        query_features = self._see(batch.query_picture, query_grid)
        document_features = self._see(batch.document_picture, document_grid)
        query = self._embedding(query_features, query_grid, batch.query)
        document = self._embedding(document_features, document_grid, batch.document)
        similarity = F.normalize(query, dim=-1) @ F.normalize(document, dim=-1).T
        similarity = similarity.float()
        size = len(similarity)
        same = torch.eye(size, dtype=torch.bool, device=similarity.device)
        clash = batch.clash & ~same
        scale = self.log_scale.exp().clamp(max=60)
        logits = (scale * similarity).masked_fill(clash, -1e4)
        target = torch.arange(size, device=similarity.device)
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        loss = loss + self._taught(query, batch.query_topics) + self._taught(document, batch.document_topics)
        return Encoded(
            query_features, document_features, query_grid, document_grid, similarity, scale, clash | same, loss
        )

    def bi(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Contrastive training alone: the loss, and the share of queries that find their document."""
        encoded = self.encode(batch)
        hit = (encoded.similarity.argmax(1) == torch.arange(len(encoded.similarity), device=self.fast.device)).float()
        return encoded.loss, hit.mean()

    def cross(self, batch: Batch, candidates: int) -> tuple[Tensor, Tensor]:
        """Cross-encoder over each query's document and mined candidates, with the bi-encoder beside it."""
        encoded = self.encode(batch)
        shown, told = self._candidates(batch.kind, encoded, candidates)
        size = len(shown)
        row = torch.arange(size, device=shown.device)[:, None].expand(-1, candidates).reshape(-1)
        flat_shown, flat_told = shown.reshape(-1), told.reshape(-1)
        segments: list[Segment] = []
        if encoded.query is not None:
            segments.append(Image([f[row] for f in encoded.query], encoded.query_grid))
        if batch.query is not None:
            segments.append(Text(batch.query.ids[row], batch.query.valid[row]))
        end = batch.end if batch.query is not None else batch.end.new_full(batch.end.shape, self.first_end)
        segments.append(Text(end[row], torch.ones_like(end[row], dtype=torch.bool)))
        segments.append(Constant(self.assembler.document))
        if encoded.document is not None:
            segments.append(Image([f[flat_shown] for f in encoded.document], encoded.document_grid))
        if batch.document is not None:
            segments.append(Text(batch.document.ids[flat_told], batch.document.valid[flat_told]))
        segments.append(Constant(self.assembler.tail))
        hidden = self.assembler.run(segments, self._instruction())
        margin = self.fast.margin(hidden).view(size, candidates)
        loss = F.cross_entropy(margin, torch.zeros(size, dtype=torch.long, device=margin.device))
        loss = loss + 0.5 * F.softplus(-margin[:, 0]).mean() + 0.5 * F.softplus(margin[:, 1:]).mean()
        if batch.kind != "mixed":  # its half-right candidates have no bi-encoder score
            chosen = encoded.similarity.gather(1, shown) * encoded.scale
            target = chosen.detach().softmax(1)
            loss = loss - self.dials.distil * (target * F.log_softmax(margin, 1)).sum(1).mean()
        loss = loss + self.dials.contrast * encoded.loss
        return loss, (margin.argmax(1) == 0).float().mean()

    @property
    def first_end(self) -> int:
        """The plain newline that closes a query without words."""
        return self.fast.vocabulary.ends[0]

    @torch.no_grad()
    def _candidates(self, kind: str, encoded: Encoded, count: int) -> tuple[Tensor, Tensor]:
        """Rows [N, count] whose picture and whose words make up each candidate; the right one comes first."""
        hard_count = count // 2
        score = (encoded.similarity * 20).masked_fill(encoded.clash, -1e3)
        noise = -torch.log(-torch.log(torch.rand_like(score).clamp(1e-6, 1 - 1e-6)))
        hard = (score + noise).topk(hard_count, 1).indices
        even = torch.rand_like(score).masked_fill(encoded.clash, -1).scatter(1, hard, -1.0)
        easy = even.topk(count - 1 - hard_count, 1).indices
        own = torch.arange(len(score), device=score.device)[:, None]
        shown = torch.cat([own, hard, easy], 1)
        told = shown.clone()
        if kind == "mixed":
            # The right picture with wrong words (twice), and the right words with a wrong picture.
            shown[:, 1] = own[:, 0]
            shown[:, -2] = own[:, 0]
            told[:, 2] = own[:, 0]
        return shown, told

"""Assembles token sequences of a batch from segments that live on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .grids import MAX_TOKENS
from .model import DEEPSTACK, HIDDEN, FastModel, Features, Prefix, embed

_MULTIPLE = 8  # attention kernels want masks whose rows are so aligned


@dataclass(frozen=True)
class Text:
    """Ids [B, L] of which only the valid ones [B, L] exist."""

    ids: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Constant:
    """Ids [L] that every row has."""

    ids: Tensor


@dataclass(frozen=True)
class Image:
    """Features of one image a row, all of grid [1]."""

    features: Features
    grid: Tensor


Segment = Text | Constant | Image


class Assembler:
    """Turns segments into hidden states, positions and masks, and runs the decoder over them."""

    def __init__(self, fast: FastModel) -> None:
        self.fast = fast
        vocabulary = fast.vocabulary
        device = fast.device
        special = vocabulary.special
        frame = [special["<|vision_start|>"], *[special["<|image_pad|>"]] * MAX_TOKENS, special["<|vision_end|>"]]
        self.frame = torch.tensor(frame, device=device)
        self.document = torch.tensor(vocabulary.document, device=device)
        self.tail = torch.tensor(vocabulary.tail, device=device)
        self.end = torch.tensor(vocabulary.end, device=device)
        width = -(-max(map(len, vocabulary.prefixes)) // _MULTIPLE) * _MULTIPLE
        rows = [[0] * (width - len(ids)) + ids for ids in vocabulary.prefixes]
        self.prefix_ids = torch.tensor(rows, device=device)
        self.prefix_lengths = torch.tensor([len(ids) for ids in vocabulary.prefixes], device=device)

    def prefix(self, choice: Tensor) -> Prefix:
        """The shared head with instruction number choice [1]."""
        ids, length = self.prefix_ids[choice], self.prefix_lengths[choice]
        width = ids.shape[1]
        steps = torch.arange(width, device=ids.device)
        position = (steps - (width - length)).clamp(min=0).float()[None]
        exists = steps >= width - length
        nothing = torch.zeros_like(position)
        cos, sin = self.fast.rotary(position, nothing, nothing)
        order = steps[:, None] >= steps[None]
        itself = steps[:, None] == steps[None]
        seen = (order & exists[None]) | itself
        mask = torch.zeros(seen.shape, device=ids.device).masked_fill(~seen, -1e4)
        return Prefix(embed(self.fast.table, ids), cos, sin, mask[None, None])

    def run(self, segments: list[Segment], choice: Tensor | None) -> Tensor:
        """Last hidden state [B, HIDDEN]; choice [1] puts the prompt's head before the segments."""
        fast = self.fast
        device = fast.device
        batch = next(s.ids.shape[0] if isinstance(s, Text) else s.features[0].shape[0]
                     for s in segments if not isinstance(s, Constant))  # fmt: skip
        head = self.prefix_ids.shape[1] if choice is not None else 0
        length = sum(_length(segment) for segment in segments) + head
        padding = -length % _MULTIPLE
        hidden: list[Tensor] = []
        valid: list[Tensor] = []
        advance: list[Tensor] = []
        rows: list[Tensor] = []
        columns: list[Tensor] = []
        images: list[tuple[int, Features]] = []
        if padding:
            none = torch.zeros(batch, padding, device=device)
            hidden.append(torch.zeros(batch, padding, HIDDEN, device=device))
            valid.append(none.bool())
            for values in (advance, rows, columns):
                values.append(none)
        at = padding
        for segment in segments:
            size = _length(segment)
            flat = torch.zeros(batch, size, device=device)
            row = column = flat
            if isinstance(segment, Text):
                hidden.append(embed(fast.table, segment.ids))
                exists, step = segment.valid, segment.valid.float()
            elif isinstance(segment, Constant):
                hidden.append(embed(fast.table, segment.ids)[None].expand(batch, -1, -1))
                exists, step = torch.ones_like(flat, dtype=torch.bool), flat + 1
            else:
                ends = embed(fast.table, self.frame)[None].expand(batch, -1, -1)
                inside = segment.features[0].to(ends.dtype)
                hidden.append(torch.cat([ends[:, :1], inside, ends[:, -1:]], 1))
                tables = fast.tables
                exists, step = (t[segment.grid].expand(batch, -1) for t in (tables.valid, tables.advance))
                row, column = (t[segment.grid].expand(batch, -1) for t in (tables.row, tables.column))
                images.append((at + 1, segment.features))
            valid.append(exists)
            advance.append(step)
            rows.append(row)
            columns.append(column)
            at += size
        x, exists = torch.cat(hidden, 1), torch.cat(valid, 1)
        step = torch.cat(advance, 1)
        position = step.cumsum(1) - step
        if choice is not None:
            position = position + self.prefix_lengths[choice].float()[:, None]
        rotary = fast.rotary(position, torch.cat(rows, 1), torch.cat(columns, 1))
        prefix = self.prefix(choice) if choice is not None else None
        mask = _mask(exists, prefix)
        deep = _deep(images, at) if images else None
        return fast.decode(x, rotary, mask, deep, prefix)


def _length(segment: Segment) -> int:
    if isinstance(segment, Text):
        return segment.ids.shape[1]
    return len(segment.ids) if isinstance(segment, Constant) else MAX_TOKENS + 2


def _mask(exists: Tensor, prefix: Prefix | None) -> Tensor:
    size = exists.shape[1]
    steps = torch.arange(size, device=exists.device)
    causal = steps[:, None] >= steps[None]
    seen = (causal[None] & exists[:, None, :]) | (steps[:, None] == steps[None])[None]
    kind = torch.bfloat16 if torch.is_autocast_enabled(exists.device.type) else torch.float32
    mask = torch.zeros(seen.shape, device=exists.device, dtype=kind).masked_fill(~seen, -1e4)[:, None]
    if prefix is None:
        return mask
    # The last row of the head's own mask says which of its tokens exist.
    head = prefix.mask[:, :, -1:].to(kind).expand(exists.shape[0], 1, size, -1)
    return torch.cat([head, mask], 3)


def _deep(images: list[tuple[int, Features]], size: int) -> list[Tensor]:
    taps = []
    for number in range(len(DEEPSTACK)):
        total = None
        for at, features in images:
            after = size - at - MAX_TOKENS
            padded = torch.nn.functional.pad(features[1 + number], (0, 0, at, after))
            total = padded if total is None else total + padded
        assert total is not None
        taps.append(total)
    return taps

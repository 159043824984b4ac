"""Random models of the published shapes whose activations are as large as a trained model's, in transformers' classes.

Made in place on the device, from seeds:

1. Matrices are normal, each unit of an output as large as a unit of the input. Norms' weights are log-normal. Layers
   of random weights amplify what is off, which trained ones do not: embeddings are large beside what the first layers
   add, and scores of attention differ by no more than one or two, so that a relative error of every product's output
   comes out some twentyfold, against the spread, rather than two hundredfold.
2. What each layer adds to the residual stream is scaled, layer after layer, to what was published of Qwen3-8B
   (arXiv:2605.15572): it grows two hundredfold through the depth.
3. The first token's residual gets a massive value, as there: 16,384, born in the feed-forward of a layer at a sixth of
   the depth, a little higher from the middle on, taken back before the last layer.
4. The outliers of the INT8 proof (`fakes.outliers`): channels 50 to 1000 times as large as the others, at every place,
   and spikes.
5. Everything is rounded to bfloat16, as checkpoints are published; float16 holds that but for what is below 6e-5.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from fakes.outliers import Outliers, growth_of
from orin_rerank.graph.places import Place, model_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from orin_rerank.graph.architecture import Architecture

__all__ = ["OUTLIERS", "Massive", "ScaledModel"]

_ATTENTION = ((0.0, 0.03), (0.17, 0.13), (0.46, 0.24), (0.6, 0.37), (0.83, 0.9), (1.0, 2.6))
_MLP = ((0.0, 0.09), (0.17, 0.22), (0.46, 0.35), (0.6, 0.56), (0.83, 2.0), (1.0, 6.0))
"""Root mean square of what attention and feed-forward add, by depth: of Qwen3-8B, but for its massive values."""
_EMBEDDING = 0.5
"""Root mean square of the embedding. In Qwen3-8B it is 0.026, and the residual stream has this after five layers."""
_FEATURES = 0.5
"""Root mean square of an image's features; nothing is published of it."""
_VISION = (0.2, 1.0)
"""Root mean square of what the first and the last block of the vision encoder add."""
_REACH = 96.0
"""What gate and up projection of a massive value's channel give for the token that has it."""
_SHUT = 30.0
"""By how much other tokens' gates are lowered."""
_CONSTANT = 0.5
"""A channel of the residual stream that is the same for all tokens throughout."""
_LIKEST = 16
"""How many tokens, most like the first, its massive value's channel does not answer to at all."""
OUTLIERS = Outliers(channels=4, factors=(50.0, 1000.0), spikes=4, vision=True, seed=1)


@dataclass(frozen=True, slots=True)
class Massive:
    """The first token's massive value.

    Attributes:
        height: What it is at first.
        more: What comes on top in the middle of the depth.
        born: Depth at which it comes, between 0 and 1.
    """

    height: float = 16_384.0
    more: float = 1_280.0
    born: float = 0.17


class _PatchProduct(nn.Module):
    """The patch embedding as one product: the same function, and torch's convolution of half precision is slow."""

    def __init__(self, embed: Any) -> None:
        super().__init__()
        self.proj = embed.proj

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        weight = self.proj.weight
        return nn.functional.linear(patches.to(weight.dtype), weight.flatten(1), self.proj.bias)


class ScaledModel:
    """A model that grows in place.

    Args:
        architecture: Its shape.
        config: Of `config_of`.
        device: Where it is made.
    """

    def __init__(self, architecture: Architecture, config: Mapping[str, Any], device: str) -> None:
        self.architecture = architecture
        vl = architecture.vision is not None
        with torch.device(device):
            settings = (Qwen3VLConfig if vl else Qwen3Config)(**config)
            self.model: Any = (Qwen3VLForConditionalGeneration if vl else Qwen3ForCausalLM)(settings).eval()
        self.decoder = self.model.model.language_model if vl else self.model.model
        self.visual = self.model.model.visual if vl else None
        if self.visual is not None:
            self.visual.patch_embed = _PatchProduct(self.visual.patch_embed)
        self.tensors: dict[str, torch.Tensor] = {name: value.data for name, value in self.model.named_parameters()}
        self._massive_rows: list[tuple[str, int]] = []
        self._massive_channels: tuple[int, ...] = ()
        for name, values in self.tensors.items():
            _fill(name, values)

    def grow(self, run: Callable[[], object], massive: Massive | None, outliers: Outliers | None) -> None:
        """Scales the layers by what they give for a sample, and puts massive values and outliers in.

        Args:
            run: Runs a sample, whose sequence has one pair.
            massive: The first token's massive value, if any.
            outliers: What every place gets, if any.
        """
        if massive is not None:
            self._add_constant()
        self._scale(run)
        if massive is not None:
            self._add_constant()  # scaling the last products scaled it too
            self._scale(run)
        if massive is not None:
            self._add_massive(massive, run)
        if outliers is not None:
            self._add_outliers(outliers)
        for values in self.tensors.values():
            values.copy_(values.to(torch.bfloat16))

    def multiply_massive(self, factor: float) -> None:
        """Makes the massive value another multiple of what it is."""
        for name, row in self._massive_rows:
            column = self.tensors[name][:, row]
            column.copy_((column * factor).to(torch.bfloat16))

    def scale_margins(self, power: int) -> None:
        """Multiplies all margins by a power of two, exactly."""
        self.decoder.norm.weight.data *= 2.0**power

    def to(self, dtype: torch.dtype) -> None:
        """Converts the weights, and not the rotary tables' frequencies, as loading in that type does."""
        for parameter in self.model.parameters():
            parameter.data = parameter.data.to(dtype)
        self.tensors = {name: value.data for name, value in self.model.named_parameters()}

    def _scale(self, run: Callable[[], object]) -> None:
        with contextlib.ExitStack() as hooks:
            for module, target in self._targets():
                hooks.enter_context(_hooked(module, _scaling_to(target)))
            run()

    def _add_constant(self) -> None:
        """One channel that is the same for all tokens, by which the gate of a massive value is kept shut for others."""
        channel = self.architecture.text.hidden // 7
        self.decoder.embed_tokens.weight.data[:, channel] = _CONSTANT
        for layer in self.decoder.layers:
            layer.self_attn.o_proj.weight.data[channel] = 0.0
            layer.mlp.down_proj.weight.data[channel] = 0.0
        if self.visual is None:
            return
        for merger in (self.visual.merger, *self.visual.deepstack_merger_list):
            merger.linear_fc2.weight.data[channel] = 0.0
            merger.linear_fc2.bias.data[channel] = 0.0
        self.visual.merger.linear_fc2.bias.data[channel] = _CONSTANT

    def _targets(self) -> Iterator[tuple[nn.Module, float]]:
        """Modules that add to a residual stream, or make features, and what they are to give."""
        depths = np.linspace(0, 1, len(self.decoder.layers))
        for layer, depth in zip(self.decoder.layers, depths, strict=True):
            yield layer.self_attn.o_proj, _between(_ATTENTION, depth)
            yield layer.mlp.down_proj, _between(_MLP, depth)
        if self.visual is None:
            return
        for block, target in zip(self.visual.blocks, np.geomspace(*_VISION, len(self.visual.blocks)), strict=True):
            yield block.attn.proj, float(target)
            yield block.mlp.linear_fc2, float(target)
        for merger in (self.visual.merger, *self.visual.deepstack_merger_list):
            yield merger.linear_fc2, _FEATURES

    def _add_massive(self, massive: Massive, run: Callable[[], object]) -> None:
        """One channel of a feed-forward layer answers to the first token alone, and writes two channels."""
        layers = self.decoder.layers
        hidden = self.architecture.text.hidden
        self._massive_channels = (hidden // 3, hidden // 5)
        ratio = torch.tensor([1.0, -0.2])
        last = len(layers) - 1
        changes = {round(massive.born * last): massive.height, round(0.46 * last): massive.more}
        total = massive.height + massive.more
        changes |= {last - 2: -total / 2, last - 1: -total / 2}  # in two: a single product is not to overflow
        for i, height in sorted(changes.items()):
            seen: list[torch.Tensor] = []
            with _hooked(layers[i].mlp.gate_proj, lambda _, inputs, __, seen=seen: seen.append(inputs[0][0])):
                run()
            token, others = seen[-1][0], seen[-1][1:]
            likest = nn.functional.cosine_similarity(others, token[None]).topk(_LIKEST).indices
            mean = others.mean(0, keepdim=True)
            # Later the massive value itself tells the token from all others.
            basis, _ = torch.linalg.qr((torch.cat([mean, others[likest]]) if height == massive.height else mean).T)
            direction = token - basis @ (basis.T @ token)
            direction *= _REACH / (direction @ token)
            layers[i].mlp.up_proj.weight.data[0] = direction
            # Other tokens fit by chance; a constant that all have shuts the gate for them.
            direction[hidden // 7] -= _SHUT / mean[0, hidden // 7]
            direction *= _REACH / (direction @ token)
            layers[i].mlp.gate_proj.weight.data[0] = direction
            column = layers[i].mlp.down_proj.weight.data[:, 0]
            column.zero_()
            column[list(self._massive_channels)] = (ratio * height / _REACH**2).to(column)
            prefix = next(name for name in self.tensors if name.endswith(f"layers.{i}.mlp.down_proj.weight"))
            self._massive_rows.append((prefix, 0))

    def _add_outliers(self, outliers: Outliers) -> None:
        """As `fakes.outliers` does, but spikes take the place of the last channels, so that the shape stays."""
        rng = np.random.default_rng(outliers.seed)
        for place in model_places(self.architecture):
            if place.producers and (outliers.vision or not place.vision):
                self._grow(place, outliers, rng)
            if place.name.endswith(".down"):
                self._add_spikes(place.weights[0], outliers, rng)

    def _grow(self, place: Place, outliers: Outliers, rng: np.random.Generator) -> None:
        rows = place.producer_rows
        growth = growth_of(place, outliers, rng)
        # A trained model's massive values meet small weights; the channels that make them are large as they are.
        if not place.vision:
            growth[list(self._massive_channels) if place.name.endswith(("qkv", "gate_up")) else [0]] = 1.0
        for producer in place.producers:
            part = self.tensors[producer.tensor][producer.begin : producer.begin + len(growth)]
            part *= torch.from_numpy(growth).to(part).reshape(-1, *[1] * (part.ndim - 1))
        for name in place.weights:
            self.tensors[name] /= torch.from_numpy(growth[rows]).to(self.tensors[name])

    def _add_spikes(self, down: str, outliers: Outliers, rng: np.random.Generator) -> None:
        """Pairs of channels that spike for single tokens, and cancel."""
        columns = self.tensors[down]
        gate, up = (self.tensors[down.replace("down_proj", part)] for part in ("gate_proj", "up_proj"))
        sizes = np.sqrt(np.exp(rng.uniform(*np.log(outliers.factors), outliers.spikes)))
        fits = torch.from_numpy(rng.normal(size=(outliers.spikes, gate.shape[1]))).to(gate)
        fits *= gate.abs().median(0).values  # the norm's own outliers do not count
        fits *= torch.from_numpy(sizes).to(gate)[:, None] / fits.norm(dim=1, keepdim=True)
        fits = fits.repeat_interleave(2, 0)
        count = len(fits)
        for part in (gate, up):
            part[-count:] = fits * part.norm(dim=1).median()
        signs = torch.from_numpy(rng.choice((-1.0, 1.0), (len(columns), outliers.spikes))).to(columns)
        columns[:, -count::2] = signs * columns[:64].abs().median()
        columns[:, -count + 1 :: 2] = -columns[:, -count::2]


def _fill(name: str, values: torch.Tensor) -> None:
    """Random numbers of a tensor's own seed."""
    generator = torch.Generator(values.device).manual_seed(zlib.crc32(name.encode()))

    def normal(mean: float, deviation: float) -> None:
        values.normal_(mean, deviation, generator=generator)

    if name.endswith(("q_norm.weight", "k_norm.weight")):  # scores of a head differ by 1.2
        normal(0.0, 0.3)
        values.exp_()
    elif "norm" in name and name.endswith(".weight"):
        normal(0.0, 0.4)
        values.exp_()
    elif name.endswith(".bias"):
        normal(0.0, 0.1)
    elif "embed_tokens" in name or "lm_head" in name:
        normal(0.0, _EMBEDDING)
    elif "pos_embed" in name:
        normal(0.0, 0.3)
    else:
        normal(0.0, math.prod(values.shape[1:]) ** -0.5)
        if name.endswith("attn.qkv.weight"):  # without norms of its own, the vision encoder's scores differ by 1.2 so
            values[: 2 * len(values) // 3] *= 1.1


def _between(knots: tuple[tuple[float, float], ...], depth: float) -> float:
    """Log-linear between knots."""
    at, values = zip(*knots, strict=True)
    return float(np.exp(np.interp(depth, at, np.log(values))))


def _scaling_to(target: float) -> Callable[..., torch.Tensor]:
    def scale(module: Any, _: Any, output: torch.Tensor) -> torch.Tensor:
        factor = target / output.square().mean().sqrt()
        module.weight.data *= factor
        if module.bias is not None:
            module.bias.data *= factor
        return output * factor

    return scale


@contextlib.contextmanager
def _hooked(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    def keep_output(*values: Any) -> torch.Tensor | None:
        result = hook(*values)
        return result if isinstance(result, torch.Tensor) else None

    handle = module.register_forward_hook(keep_output)
    try:
        yield
    finally:
        handle.remove()

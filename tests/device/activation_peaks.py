"""The largest activations of a model of transformers', by what makes or takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["ActivationPeaks"]


class ActivationPeaks:
    """Watches a model until it is closed: inputs and outputs of its linear layers, and its residual streams.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._peaks: dict[str, torch.Tensor] = {}
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            part = "vision" if ".visual." in name else "decoder"
            label = f"{part} {name.rsplit('.', 1)[-1]}"
            if isinstance(module, nn.Linear) and "lm_head" not in name:
                self._watch(module, f"{label} in", f"{label} out")
            elif name.rsplit(".", 2)[-2:-1] in (["layers"], ["blocks"]):
                self._watch(module, f"{part} residual", None)

    def close(self) -> None:
        """Stops watching."""
        for handle in self._handles:
            handle.remove()

    def figures(self) -> dict[str, float]:
        """The largest magnitudes, largest first."""
        peaks = {name: float(value) for name, value in self._peaks.items()}
        return dict(sorted(peaks.items(), key=lambda item: -item[1]))

    def _watch(self, module: nn.Module, entering: str, leaving: str | None) -> None:
        def see(label: str, values: torch.Tensor) -> None:
            peak = values.detach().abs().amax().float()
            self._peaks[label] = torch.maximum(self._peaks[label], peak) if label in self._peaks else peak

        def hook(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: Any) -> None:
            see(entering, inputs[0])
            if leaving is not None:
                see(leaving, output)

        self._handles.append(module.register_forward_hook(hook))

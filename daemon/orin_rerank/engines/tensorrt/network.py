"""ONNX graphs as TensorRT networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.tensorrt.api import NETWORK_FLAGS, RUNTIME, trt
from orin_rerank.errors import BuildError, GraphRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from orin_rerank.engines.tensorrt.profiles import ShapeProfile

__all__ = ["BuildLogger", "ParsedNetwork", "add_profiles", "input_dimensions", "parse_network"]


_GRAPH_IS_GONE: Final = (
    "the bundle has changed since it was verified: give the same command again, which says what is damaged"
)


class BuildLogger(trt.ILogger):
    """Passes on what TensorRT says, warnings and worse.

    Args:
        say: Told severity and text; called from TensorRT's threads.
    """

    def __init__(self, say: Callable[[str, str], None]) -> None:
        trt.ILogger.__init__(self)
        self._say = say

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Called by TensorRT."""
        if severity in {
            trt.ILogger.Severity.INTERNAL_ERROR,
            trt.ILogger.Severity.ERROR,
            trt.ILogger.Severity.WARNING,
        }:
            self._say(severity.name, msg)


@dataclass(frozen=True, slots=True, eq=False)
class ParsedNetwork:
    """A network, and what must stay alive until it is built: its weights are the parser's.

    Attributes:
        builder: Made the network.
        network: The network.
        parser: Owns its weights.
    """

    builder: trt.Builder
    network: trt.INetworkDefinition
    parser: trt.OnnxParser


def parse_network(graph: Path, weights: Path | None, logger: trt.ILogger) -> ParsedNetwork:
    """Reads a graph.

    Args:
        graph: The ONNX file.
        weights: Folder of the weight file; None where it lies beside the graph.
        logger: TensorRT's.

    Raises:
        GraphRefusedError: If the graph cannot be read, or TensorRT does not take it; the item names graph and node,
            the message the operator.
    """
    builder = trt.Builder(logger)
    network = builder.create_network(NETWORK_FLAGS)
    parser = trt.OnnxParser(network, logger)
    try:
        model = graph.read_bytes()
    except OSError as error:
        raise GraphRefusedError(f"cannot be read: {error.strerror}", item=str(graph), advice=_GRAPH_IS_GONE) from error
    # The graph is small, its weights are not in it. They are looked for beside the path given, whatever lies there.
    if not parser.parse(model, path=str((weights or graph.parent).resolve() / graph.name)):
        raise _refusal(graph, parser)
    if network.num_layers == 0:  # what an empty file is, and an unknown format may look like
        raise GraphRefusedError("holds no graph", item=graph.name, advice=_GRAPH_IS_GONE)
    return ParsedNetwork(builder, network, parser)


def _refusal(graph: Path, parser: trt.OnnxParser) -> GraphRefusedError:
    errors = [parser.get_error(i) for i in range(parser.num_errors)]
    if not errors:
        return GraphRefusedError(f"{RUNTIME} does not take the graph, and does not say why", item=graph.name)
    first = errors[0]
    node, operator = first.node_name(), first.node_operator()
    where = f"{graph.name}: {node}" if node else graph.name
    of_what = f" at its {operator} node" if operator else ""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return GraphRefusedError(f"{RUNTIME} does not take the graph{of_what}: {first.desc().strip()}{more}", item=where)


def input_dimensions(network: trt.INetworkDefinition) -> dict[str, tuple[int | str, ...]]:
    """By an input's name its dimensions: a length, or the name of a dynamic one."""
    dimensions: dict[str, tuple[int | str, ...]] = {}
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        dimensions[tensor.name] = tuple(
            tensor.get_dimension_name(axis) if length < 0 else int(length) for axis, length in enumerate(tensor.shape)
        )
    return dimensions


def add_profiles(parsed: ParsedNetwork, config: trt.IBuilderConfig, profiles: Iterable[ShapeProfile]) -> None:
    """Adds optimisation profiles, in their order.

    Raises:
        BuildError: If TensorRT does not take one; the item names it.
    """
    declared = input_dimensions(parsed.network)
    for number, profile in enumerate(profiles):
        added = parsed.builder.create_optimization_profile()
        for name, dimensions in declared.items():
            if any(isinstance(d, str) for d in dimensions):
                added.set_shape(name, *profile.shapes(dimensions))
        if config.add_optimization_profile(added) != number:
            raise BuildError(
                f"{RUNTIME} does not take the profile",
                item=profile.name,
                advice="another --token-budget or --max-tokens gives others; report this line",
            )

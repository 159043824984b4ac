"""The TensorRT bindings under one name, `trt`, whichever of them this machine has.

Whoever imports this module needs them; `installed_bindings` in `engines.tensorrt.bindings` asks without importing.

What differs between TensorRT 10.3 and 11.4 and touches us is here, and it is little, since the code keeps to what all
of them have: networks are strongly typed, quantised by Q and DQ nodes, their tensors are addressed by name. No release
needs the flag for explicit batches, and 11 lacks it; all accept the one for strong typing, which 11 implies.

TensorRT-RTX has the same interface, and compiles without a GPU, but for a GPU that is named. It has no timing cache.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from orin_rerank.engines.tensorrt.bindings import installed_bindings
from orin_rerank.errors import BuildError, TensorRtMissingError

if TYPE_CHECKING:
    import tensorrt as trt
else:
    _found = installed_bindings()
    if _found is None:
        raise TensorRtMissingError("neither the tensorrt nor the tensorrt_rtx module is installed for this Python")
    try:
        trt = importlib.import_module(_found)
    except ImportError as error:  # they are there, but not the libraries that they need
        raise TensorRtMissingError(f"cannot be imported: {error}", item=_found) from error

__all__ = ["IS_RTX", "NETWORK_FLAGS", "RUNTIME", "choose_target", "trt"]

IS_RTX: Final[bool] = trt.__name__ == "tensorrt_rtx"

RUNTIME: Final[str] = f"{trt.__name__} {trt.__version__}"
"""The compiler and its version, such as `tensorrt 10.3.0`; plans of another are not loaded."""

NETWORK_FLAGS: Final[int] = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
"""Types are the graph's own; a product is INT8 or float16 because the graph says so, and never otherwise."""


def choose_target(config: trt.IBuilderConfig, target: str | None) -> None:
    """Says for which GPU to compile.

    Args:
        config: The build's.
        target: Such as `SM86`; None means the GPU of this machine.

    Raises:
        BuildError: If the compiler only knows the GPU of this machine, or does not know the target.
    """
    if target is None:
        return
    known = getattr(getattr(trt, "ComputeCapability", None), target, None)
    if known is None:
        raise BuildError(
            f"{RUNTIME} does not compile for this GPU",
            item=target,
            advice="a later TensorRT-RTX may (pip install --upgrade tensorrt-rtx)",
        )
    cross: Any = config  # the bindings of TensorRT proper lack what follows
    cross.num_compute_capabilities = 1
    cross.set_compute_capability(known, 0)

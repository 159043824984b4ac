"""The real bindings, where they are installed: without a GPU they run nothing, but say why as is expected of them."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from engines.tensorrt.compiling import needs_compiler
from fakes.random_models import write_random_model
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.feeding import pack_inputs, pack_outputs
from orin_rerank.engines.pool import BufferPool, ImageCapacity, PackCapacity
from orin_rerank.engines.tensorrt.bindings import installed_bindings
from orin_rerank.errors import PlanError
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.packing.arrays import PackLayout
from orin_rerank.packing.pack import PackBuilder

MINI = Path(__file__).resolve().parents[3] / "engines" / "mini"

pytestmark = pytest.mark.skipif(installed_bindings() is None, reason="no TensorRT bindings are installed")


def test_what_is_no_plan_is_refused_as_one(tmp_path: Path) -> None:
    """Deserialised from a mapping, as the real ones are; TensorRT finds the header wrong before it needs a GPU."""
    from orin_rerank.engines.tensorrt.installed import installed_runtime

    runtime = installed_runtime()
    path = tmp_path / "bad.plan"
    path.write_bytes(b"no plan at all, but long enough to hold a header" * 64)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        with pytest.raises(PlanError, match="magicTag") as caught:
            runtime.load(mapping, path.name)
        assert caught.value.item == "bad.plan"
    assert runtime.journal.errors() == [], "they went into the error"
    runtime.close()


def test_every_cuda_context_gets_a_runtime_of_its_own_and_all_share_the_logger() -> None:
    """What a runtime holds goes when the device is reset; TensorRT keeps a process's first logger."""
    from orin_rerank.engines.tensorrt.installed import installed_runtime

    one, other = installed_runtime(), installed_runtime()
    first, second = one._runtime, other._runtime
    assert first is not None
    assert second is not None
    assert first is not second
    assert first.logger is second.logger
    assert one.journal is other.journal
    del first
    one.close()
    assert one._runtime is None
    other.close()


def test_an_enumeration_has_what_contexts_are_made_with() -> None:
    from orin_rerank.engines.tensorrt.installed import installed_runtime

    assert installed_runtime().strategy.USER_MANAGED.name == "USER_MANAGED"


@needs_compiler
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8_FP16])
def test_tensorrt_takes_the_arrays_that_the_engine_binds(tmp_path: Path, precision: Precision) -> None:
    """By name, type and rank; and none of them as a shape, which it would want in host memory."""
    from orin_rerank.engines.tensorrt.api import trt
    from orin_rerank.engines.tensorrt.network import BuildLogger, parse_network

    manifest = Bundle.open(MINI).manifest
    image, architecture = manifest.prompt.image, manifest.architecture
    assert image is not None
    (graph,) = write_random_model(tmp_path, architecture, precision, [Dialect.PRIMITIVE])
    capacity = PackCapacity.of_model(architecture, tokens=64, documents=4, product_dtype=np.float16)
    images = ImageCapacity.of_model(image, capacity)
    pool = BufferPool(capacity, 1, 1.0, images=images)
    bound = {}
    with pool.lend(PackLayout(PackBuilder(1).build(), {})) as arrays:
        bound[graph.text] = pack_inputs(arrays, visual=True), pack_outputs(arrays)
    with pool.lend_for_images(1, 4) as arrays:
        names = ("patches", "position_index", "position_weight", "cos", "sin")
        bound[graph.vision] = {name: getattr(arrays, name) for name in names}, {"features": arrays.features}
    for name, (inputs, outputs) in bound.items():
        assert name is not None
        network = parse_network(tmp_path / name, None, BuildLogger(lambda *_: None)).network
        for given, count, get in (
            (inputs, network.num_inputs, network.get_input),
            (outputs, network.num_outputs, network.get_output),
        ):
            taken = {tensor.name: tensor for tensor in map(get, range(count))}
            assert taken.keys() == given.keys()
            for key, tensor in taken.items():
                assert np.dtype(trt.nptype(tensor.dtype)) == given[key].dtype
                assert len(tensor.shape) == given[key].ndim
                assert all(a in {-1, b} for a, b in zip(tensor.shape, given[key].shape, strict=True))
                assert not tensor.is_shape_tensor

"""The real engine: many threads, errors, and the caches' effect on nothing but time."""

from __future__ import annotations

import contextlib
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engines.running import make_encoder, make_engine, make_runner, margins_of, pack_of, pairs_of, random_requests
from engines.running import random_split as split
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.port import Probe
from orin_rerank.errors import BundleError, EngineClosedError, EngineError, InternalError
from orin_rerank.graph.builder import Dialect
from orin_rerank.packing.arrays import PackLayout

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.prompt.content import ImagePart
    from orin_rerank.prompt.encoder import PromptEncoder


@pytest.mark.parametrize("dialect", Dialect)
def test_sixteen_threads_give_what_one_gives(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, pictures: list[ImagePart], dialect: Dialect
) -> None:
    rng = random.Random(3)
    pairs = pairs_of(random_requests(vl_encoder, rng, 6, 5, pictures))
    alone = margins_of(make_runner(vl_bundle, make_engine(vl_bundle, dialect)), pairs, [[i] for i in range(len(pairs))])
    engine = make_engine(vl_bundle, dialect, threads=4)  # fewer buffers than threads: some wait
    runner = make_runner(vl_bundle, engine)

    def work(seed: int) -> float:
        packs = split(random.Random(seed), len(pairs))
        return float(np.abs(margins_of(runner, pairs, packs) - alone).max())

    with ThreadPoolExecutor(16) as threads:
        assert max(threads.map(work, range(32))) < 1e-5
    assert engine.pool.used == 0
    assert 1 <= engine.pool.high_water <= 4


def test_closing_waits_for_who_runs_and_turns_others_away(vl_bundle: Bundle, vl_encoder: PromptEncoder) -> None:
    pairs = pairs_of(random_requests(vl_encoder, random.Random(6), 1, 1, []))
    engine = make_engine(vl_bundle, Dialect.FUSED, threads=2)
    runner = make_runner(vl_bundle, engine, remember=False)
    right = margins_of(runner, pairs, [[0]])
    layout = PackLayout(pack_of(pairs, [0]), {})
    with ThreadPoolExecutor(1) as threads:
        with engine.arrays(layout) as arrays:
            layout.fill(arrays, runner._rotary, {})
            closing = threads.submit(engine.close)
            with contextlib.suppress(EngineClosedError):
                while not closing.done():
                    margins_of(runner, pairs, [[0]])  # until it is turned away
            assert not closing.done()
            engine.run(arrays)
            assert np.array_equal(arrays.margin, right)
        closing.result(10)
    with pytest.raises(EngineClosedError):
        margins_of(runner, pairs, [[0]])
    engine.close()


def test_both_dialects_agree(vl_bundle: Bundle, vl_encoder: PromptEncoder, pictures: list[ImagePart]) -> None:
    pairs = pairs_of(random_requests(vl_encoder, random.Random(4), 3, 6, pictures))
    results = [
        margins_of(make_runner(vl_bundle, make_engine(vl_bundle, dialect)), pairs, [range(len(pairs))])
        for dialect in Dialect
    ]
    assert np.ptp(results, axis=0).max() < 1e-5
    assert results[0].std() > 0.1


def test_a_text_only_model_takes_no_images(
    text_bundle: Bundle, vl_encoder: PromptEncoder, pictures: list[ImagePart]
) -> None:
    engine = make_engine(text_bundle, Dialect.PRIMITIVE)
    pairs = pairs_of(random_requests(make_encoder(text_bundle), random.Random(5), 2, 3, []))
    assert np.isfinite(margins_of(make_runner(text_bundle, engine), pairs, [range(len(pairs))])).all()
    with_images = random_requests(vl_encoder, random.Random(1), 4, 4, pictures)
    images = [image for request in with_images for document in request.documents for image in document.images]
    with pytest.raises(InternalError):
        engine.encode_images(images[:1])


def test_images_encoded_together_or_alone_are_the_same(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, pictures: list[ImagePart]
) -> None:
    from orin_rerank.prompt.content import RerankInput

    engine = make_engine(vl_bundle, Dialect.PRIMITIVE)
    request = vl_encoder.encode(RerankInput([pictures[0]], [[pictures[3]], [pictures[1]]]))
    one, other, larger = request.prefix.images[0], request.documents[0].images[0], request.documents[1].images[0]
    alone = [engine.encode_images([picture])[0] for picture in (one, other)]
    engine.encode_images([larger])  # leaves something else in the buffers
    together = engine.encode_images([one, other])
    assert alone[0].shape == (3, one.tokens, vl_bundle.manifest.architecture.text.hidden)
    assert np.abs(np.array(alone) - np.array(together)).max() < 1e-5
    assert np.abs(alone[0] - alone[1]).max() > 0.1
    assert not any(np.shares_memory(a, b) for a in together for b in alone)


def test_an_error_of_the_runtime_is_typed_and_the_engine_goes_on(vl_bundle: Bundle, vl_encoder: PromptEncoder) -> None:
    engine = make_engine(vl_bundle, Dialect.PRIMITIVE)
    pairs = pairs_of(random_requests(vl_encoder, random.Random(6), 1, 2, []))
    runner = make_runner(vl_bundle, engine)
    right = margins_of(runner, pairs, [[0, 1]])
    pack = pack_of(pairs, range(2))
    layout = PackLayout(pack, {})
    with engine.arrays(layout) as arrays:
        layout.fill(arrays, make_runner(vl_bundle, engine)._rotary, {})
        arrays.ids[0] = 1 << 20  # beyond the embedding
        with pytest.raises(EngineError, match="ONNX Runtime failed"):
            engine.run(arrays)
    assert np.array_equal(margins_of(make_runner(vl_bundle, engine), pairs, [[0, 1]]), right)


def test_an_error_while_inputs_are_bound_is_typed_too(vl_bundle: Bundle, vl_encoder: PromptEncoder) -> None:
    """On a GPU that is where a loss is met first: what is small is copied there."""
    engine = make_engine(vl_bundle, Dialect.PRIMITIVE)
    pairs = pairs_of(random_requests(vl_encoder, random.Random(6), 1, 2, []))
    layout = PackLayout(pack_of(pairs, range(2)), {})
    with engine.arrays(layout) as arrays:
        layout.fill(arrays, make_runner(vl_bundle, engine)._rotary, {})
        with pytest.raises(EngineError, match="ONNX Runtime failed"):
            engine.run(arrays, Probe(outputs=(), inputs={"nobody": np.zeros(1, np.float32)}))
        with pytest.raises(EngineError, match="ONNX Runtime failed"):
            engine.run(arrays, Probe(outputs=("nobody",), inputs={}))
    assert np.isfinite(margins_of(make_runner(vl_bundle, engine), pairs, [[0, 1]])).all()


def test_a_graph_that_is_none_is_refused(vl_bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(vl_bundle.folder, folder)
    (folder / "text.primitive.fp32.onnx").write_bytes(b"no graph")
    bundle = Bundle.open(folder)
    with pytest.raises(BundleError) as caught:
        make_engine(bundle, Dialect.PRIMITIVE)
    assert caught.value.item == "text.primitive.fp32.onnx"


def test_says_what_it_is(vl_bundle: Bundle) -> None:
    engine = make_engine(vl_bundle, Dialect.FUSED, threads=3, tokens=512)
    assert (engine.info.name, engine.info.precision) == ("onnxruntime-cpu", "fp32")
    assert (engine.info.max_tokens, engine.info.max_documents, engine.info.slots) == (512, 64, 3)
    assert (engine.pool.slots, engine.pool.used) == (3, 0)
    assert engine.pool.total_bytes > 0
    engine.close()

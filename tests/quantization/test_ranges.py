"""Ranges: what is collected equals what numpy makes of all rows at once, in any order, and files say what they are."""

from __future__ import annotations

import json
import struct
import threading
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from orin_rerank.errors import CalibrationError, InternalError
from orin_rerank.graph.places import Place
from orin_rerank.graph.probes import TAIL
from orin_rerank.quantization.array_file import read_arrays, write_arrays
from orin_rerank.quantization.magnitudes import BINS, bin_counts, lower_edge, upper_edge
from orin_rerank.quantization.ranges import Provenance, RangeCollector, Ranges

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = Provenance("a" * 64, "b" * 64, "c" * 64)


def place(name: str, channels: int) -> Place:
    return Place(name, channels, 4, (f"{name}.weight",), (), (1, 1, channels))


PLACES = (place("narrow", 5), place("wide", 40))


def report(values: dict[str, np.ndarray], sample: np.ndarray) -> dict[str, np.ndarray]:
    """What an observed graph gives for these activations, float32 `[rows, channels]` of each place."""
    parts = list(values.values())
    tails = []
    for x in parts:
        largest = -np.sort(-np.abs(x), axis=1)[:, :TAIL]
        tails.append(np.pad(largest, ((0, 0), (0, TAIL - largest.shape[1]))))
    return {
        "maxima": np.concatenate([np.abs(x).max(axis=0) for x in parts]),
        "tails": np.concatenate(tails),
        "samples": np.concatenate([x[sample % len(x)] for x in parts], axis=1),
        "rows": np.array([len(x) for x in parts], np.int32),
    }


def runs(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Activations of several runs; the narrow place has fewer rows, and every run has one row with a spike."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        wide = rng.standard_normal((int(rng.integers(3, 30)), 40)).astype(np.float32)
        wide[0, 7] *= 200
        made.append({"narrow": rng.standard_normal((2, 5)).astype(np.float32), "wide": wide})
    return made


def collect(made: list[dict[str, np.ndarray]], kept: int = 16, drawn: int = 64) -> Ranges:
    collector = RangeCollector(PLACES, kept_rows=kept)
    for values in made:
        sample = np.random.default_rng(len(values["wide"])).integers(0, 1 << 31, drawn)
        collector.add(PLACES, report(values, sample))
    return collector.ranges(SOURCE)


def same(one: Ranges, other: Ranges) -> bool:
    return list(one) == list(other) and all(
        a.rows == b.rows
        and a.tail_floor == b.tail_floor
        and all(np.array_equal(getattr(a, x), getattr(b, x)) for x in ("maxima", "tail", "samples"))
        for a, b in ((one[name], other[name]) for name in one)
    )


def test_bins_are_sixteenths_of_octaves() -> None:
    values = np.float32([0, 1e-30, 1, 1.0624, 1.0626, 1.99, 2, 3.0, 65504, 1e30])
    counts = bin_counts(values)
    assert counts.sum() == len(values)
    assert counts[0] == 2
    assert counts[-1] == 1
    for value in values[2:-1]:
        one = int(np.flatnonzero(bin_counts(value))[0])
        assert lower_edge(one) <= value < upper_edge(one)
        assert upper_edge(one) / lower_edge(one) <= 1 + 1 / 16
    assert lower_edge(0) == 2.0**-16
    assert upper_edge(BINS - 1) == 2.0**24


def test_collected_equals_all_rows_at_once() -> None:
    made = runs(50)
    ranges = collect(made)
    for name in ("narrow", "wide"):
        every = np.concatenate([values[name] for values in made])
        found = ranges[name]
        assert np.array_equal(found.maxima, np.abs(every).max(axis=0))
        assert found.peak == np.abs(every).max()
        assert (found.rows, found.channels) == every.shape
        largest = -np.sort(-np.abs(every), axis=1)[:, :TAIL]
        assert found.tail.sum() == largest.size
        assert found.tail_floor == largest[:, -1].max()
        complete = [b for b in range(BINS) if lower_edge(b) > found.tail_floor]
        assert np.array_equal(found.tail[complete], bin_counts(np.abs(every))[complete])
        rows = {row.tobytes() for row in every}
        kept = {row.tobytes() for row in found.samples}
        assert len(kept) == len(found.samples) == 16
        assert kept <= rows


def test_fewer_rows_than_may_be_kept_are_all_kept_once() -> None:
    made = [runs(1)[0]] * 3
    ranges = collect(made)
    assert ranges["narrow"].samples.shape == (2, 5)
    assert ranges["narrow"].rows == 6
    assert {row.tobytes() for row in ranges["narrow"].samples} == {row.tobytes() for row in made[0]["narrow"]}


def test_neither_order_nor_threads_matter() -> None:
    made = runs(60)
    expected = collect(made)
    assert same(collect(made[::-1]), expected)
    assert not same(collect(made[1:]), expected)
    collector = RangeCollector(PLACES, kept_rows=16)

    def add(part: list[dict[str, np.ndarray]]) -> None:
        for values in part:
            sample = np.random.default_rng(len(values["wide"])).integers(0, 1 << 31, 64)
            collector.add(PLACES, report(values, sample))

    threads = [threading.Thread(target=add, args=(made[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same(collector.ranges(SOURCE), expected)


def test_rows_are_kept_uniformly() -> None:
    """Of 200 different rows, of which half come ten times as often, 50 are kept: as many of each half."""
    rng = np.random.default_rng(3)
    from_common = []
    for _ in range(40):
        rows = rng.standard_normal((200, 5)).astype(np.float32)
        rows[:100, 0] = 9
        collector = RangeCollector(PLACES[:1], kept_rows=50)
        for _ in range(10):
            collector.add(PLACES[:1], report({"narrow": rows[:100]}, np.arange(100)))
        collector.add(PLACES[:1], report({"narrow": rows[100:]}, np.arange(100)))
        from_common.append((collector.ranges(SOURCE)["narrow"].samples[:, 0] == 9).sum())
    assert abs(np.mean(from_common) - 25) < 2.5


def test_a_percentile_is_exact_to_a_bin_above_the_floor_and_sampled_below() -> None:
    found = collect(runs(50), kept=200)["wide"]
    every = np.abs(np.concatenate([values["wide"] for values in runs(50)]))
    assert found.percentile(100) == found.peak
    for percent in (99.99, 99.9, 99.5, 99):
        exact = np.quantile(every, percent / 100, method="higher")
        assert exact > found.tail_floor
        assert exact <= found.percentile(percent) <= exact * (1 + 1 / 16) or found.percentile(percent) == found.peak
    below = np.quantile(every, 0.5)
    assert below < found.tail_floor
    assert found.percentile(50) == pytest.approx(below, rel=0.05)
    bare = replace(found, samples=found.samples[:0])
    assert bare.percentile(50) == found.tail_floor
    assert bare.percentile(99.9) == found.percentile(99.9)
    with pytest.raises(InternalError, match="0th percentile"):
        found.percentile(0)


def test_memory_does_not_grow_with_the_set() -> None:
    rounds = [[report(values, np.arange(64)) for values in runs(40, seed)] for seed in range(6)]
    collector = RangeCollector(PLACES, kept_rows=16)
    held = []
    tracemalloc.start()
    try:
        for reports in rounds:
            for one in reports:
                collector.add(PLACES, one)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    offered = sum(one["samples"].nbytes for reports in rounds[1:] for one in reports)
    assert held[-1] - held[0] < offered / 100


def test_an_activation_that_is_not_finite_names_its_place() -> None:
    for key, index in (("maxima", 7), ("tails", (3, 0)), ("samples", (0, 20))):
        collector = RangeCollector(PLACES)
        bad = report(runs(1)[0], np.arange(4))
        bad[key][index] = np.inf if key == "tails" else np.nan
        with pytest.raises(CalibrationError, match="not a finite number") as caught:
            collector.add(PLACES, bad)
        assert caught.value.item == "wide"


def test_a_place_that_was_never_reached_is_named() -> None:
    collector = RangeCollector(PLACES)
    collector.add(PLACES[1:], report({"wide": runs(1)[0]["wide"]}, np.arange(4)))
    with pytest.raises(CalibrationError, match="never reached") as caught:
        collector.ranges(SOURCE)
    assert caught.value.item == "narrow"


def test_a_report_of_other_places_is_a_bug() -> None:
    with pytest.raises(InternalError, match="45 channels of 2 places"):
        RangeCollector(PLACES).add(PLACES[:1], report(runs(1)[0], np.arange(4)))


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    ranges = collect(runs(20))
    path = tmp_path / "ranges.safetensors"
    ranges.save(path)
    assert same(Ranges.load(path, SOURCE), ranges)
    first = path.read_bytes()
    ranges.save(path)
    assert path.read_bytes() == first
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_file_without_samples_lacks_only_those(tmp_path: Path) -> None:
    ranges = collect(runs(20))
    path = tmp_path / "ranges.safetensors"
    ranges.save(path, samples=False)
    loaded = Ranges.load(path, SOURCE)
    assert loaded["wide"].samples.shape == (0, 40)
    bare = Ranges({name: replace(found, samples=found.samples[:0]) for name, found in ranges.items()}, SOURCE)
    assert same(loaded, bare)


def test_other_readers_open_the_file(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    ranges = collect(runs(20))
    path = tmp_path / "ranges.safetensors"
    ranges.save(path)
    assert np.array_equal(load_file(path)["wide/maxima"], ranges["wide"].maxima)


@pytest.mark.parametrize("what", ["bundle", "dataset", "graph"])
def test_ranges_of_something_else_are_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "ranges.safetensors"
    collect(runs(3)).save(path)
    with pytest.raises(CalibrationError, match=f"another {what}: {getattr(SOURCE, what)[:12]}, not 999999999999"):
        Ranges.load(path, replace(SOURCE, **{what: "9" * 64}))


def test_no_cut_and_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "ranges.safetensors"
    collect(runs(3), kept=2).save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    places = [*range(8), *rng.integers(8, len(whole), 150).tolist()]
    for at in places:
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :]):
            path.write_bytes(damaged)
            if _header(damaged) == _header(whole) and damaged[8 + _length(whole) :] == whole[8 + _length(whole) :]:
                continue  # a space in the padding of the header that became another kind of space
            with pytest.raises(CalibrationError) as caught:
                Ranges.load(path, SOURCE)
            assert str(path) in str(caught.value)


def _length(contents: bytes) -> int:
    return struct.unpack("<Q", contents[:8])[0]


def _header(contents: bytes) -> object:
    try:
        return json.loads(contents[8 : 8 + _length(contents)])
    except (ValueError, struct.error):
        return None


def test_a_missing_file_and_one_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranges.safetensors"
    with pytest.raises(CalibrationError, match="No such file"):
        Ranges.load(path, SOURCE)
    write_arrays(path, {"x": np.zeros(3, np.float32)}, {"format": "7"})
    with pytest.raises(CalibrationError, match="no file of ranges"):
        Ranges.load(path, SOURCE)
    about = {"format": "1", "bundle": SOURCE.bundle, "dataset": SOURCE.dataset, "graph": SOURCE.graph}
    write_arrays(path, {"x/maxima": np.zeros(3, np.float32)}, about)
    with pytest.raises(CalibrationError, match="malformed"):
        Ranges.load(path, SOURCE)


def test_arrays_of_every_shape_come_back(tmp_path: Path) -> None:
    path = tmp_path / "arrays"
    arrays = {
        "scalar": np.array(3, np.int64),
        "none": np.zeros((0, 4), np.float32),
        "cut": np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
    }
    write_arrays(path, arrays, {"a": "b"})
    found, about = read_arrays(path)
    assert about == {"a": "b"}
    assert {k: v.tolist() for k, v in found.items()} == {k: v.tolist() for k, v in arrays.items()}
    assert found["none"].shape == (0, 4)
    with pytest.raises(InternalError, match="float16"):
        write_arrays(path, {"half": np.zeros(1, np.float16)}, {})

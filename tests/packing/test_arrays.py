"""A pack's arrays against what each token, looked at alone, must find in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orin_rerank.packing.arrays import PackArrays, PackLayout
from orin_rerank.packing.pack import Pack
from orin_rerank.packing.rotary import RotaryTable
from packing.segments import MAX_POSITION, packs

LAYERS, KV_HEADS, HEAD, HIDDEN, TAPS = 2, 1, 12, 5, 2
ROTARY = RotaryTable(HEAD, 1e4, (2, 2, 2), MAX_POSITION)


@dataclass(frozen=True)
class Token:
    """One token, and which it must see: tokens of its group's prefix and its own document."""

    group: int
    document: int | None
    place: int
    id: int
    positions: tuple[int, int, int]
    image: tuple[bytes, int] | None


def tokens_of(pack: Pack) -> list[Token]:
    result = []
    document_number = 0
    for number, group in enumerate(pack.groups):
        for i, segment in enumerate((group.prefix, *group.documents)):
            document_number += i > 0
            owners = [(image.digest, row) for image in segment.images for row in range(image.tokens)]
            for place in range(len(segment)):
                visual = int(segment.visual_index[place])
                result.append(
                    Token(
                        number,
                        document_number if i else None,
                        place,
                        int(segment.ids[place]),
                        tuple(int(axis[place]) for axis in segment.positions),
                        owners[visual] if visual >= 0 else None,
                    )
                )
    return result


def sees(row: Token, column: Token) -> bool:
    if row.group != column.group:
        return False
    if column.document is None:
        return row.document is not None or column.place <= row.place
    return column.document == row.document and column.place <= row.place


def empty_arrays(layout: PackLayout) -> PackArrays:
    """Arrays of the layout's size, full of numbers that would be noticed if they were left."""
    s, n, v = layout.tokens, layout.pack.documents, layout.visual_rows
    known, keep = max(layout.known_rows, 1), max(layout.keep_rows, 1)

    def ints(*shape: int) -> np.ndarray:
        return np.full(shape, 987654, np.int32)

    def floats(*shape: int) -> np.ndarray:
        return np.full(shape, np.nan, np.float32)

    return PackArrays(
        ids=ints(s),
        cos=floats(s, HEAD // 2),
        sin=floats(s, HEAD // 2),
        prefix_id=ints(s),
        document_id=ints(s),
        visual_index=ints(s),
        last=ints(n),
        visual=floats(v, HIDDEN),
        deepstack=tuple(floats(v, HIDDEN) for _ in range(TAPS)),
        known=floats(LAYERS, 2, known, KV_HEADS, HEAD),
        known_id=ints(known),
        keep=ints(keep),
        margin=floats(n),
        kept=floats(LAYERS, 2, keep, KV_HEADS, HEAD),
    )


def key_values(prefix_digest: bytes, tokens: int) -> np.ndarray:
    rng = np.random.default_rng(list(prefix_digest[:8]))
    return rng.standard_normal((LAYERS, 2, tokens, KV_HEADS, HEAD)).astype(np.float32)


def features_of(pack: Pack) -> dict[bytes, np.ndarray]:
    return {
        image.digest: np.random.default_rng(list(image.digest[:8]))
        .standard_normal((1 + TAPS, image.tokens, HIDDEN))
        .astype(np.float32)
        for segment in pack.segments()
        for image in segment.images
    }


def known_of(pack: Pack, groups: int) -> dict[bytes, np.ndarray]:
    """Keys and values of the prefixes of those groups whose bit is set."""
    return {
        group.prefix.digest: key_values(group.prefix.digest, len(group.prefix))
        for i, group in enumerate(pack.groups)
        if groups >> i & 1
    }


@given(packs(), st.integers(0, 15))
def test_every_token_finds_its_own(pack: Pack, known_groups: int) -> None:
    known = known_of(pack, known_groups)
    layout = PackLayout(pack, known)
    arrays = empty_arrays(layout)
    features = features_of(pack)
    layout.fill(arrays, ROTARY, {digest: features[digest] for digest in layout.image_digests})

    every = tokens_of(pack)
    remembered = [pack.groups[t.group].prefix.digest in known and t.document is None for t in every]
    computed = [t for t, skip in zip(every, remembered, strict=True) if not skip]
    recalled = [t for t, skip in zip(every, remembered, strict=True) if skip]

    assert layout.tokens == len(computed) == len(arrays.ids)
    assert arrays.ids.tolist() == [t.id for t in computed]
    for i, token in enumerate(computed):
        row = int(arrays.visual_index[i])
        if token.image is None:
            assert row == 0
        else:
            digest, place = token.image
            tables = (arrays.visual, *arrays.deepstack)
            assert row > 0
            assert [t[row].tolist() for t in tables] == features[digest][:, place].tolist()
    for table in (arrays.visual, *arrays.deepstack):
        assert not table[0].any()
        assert np.isfinite(table).all()

    # What the graph makes of the numbers is exactly what tokens are to see.
    places = np.arange(layout.tokens)
    in_sequence = (
        (places[None, :] <= places[:, None])
        & (arrays.prefix_id[None, :] == arrays.prefix_id[:, None])
        & ((arrays.document_id[None, :] == 0) | (arrays.document_id[None, :] == arrays.document_id[:, None]))
    )
    assert in_sequence.tolist() == [[sees(row, column) for column in computed] for row in computed]
    before = arrays.known_id[None, :] == arrays.prefix_id[:, None]
    if recalled:
        assert before.tolist() == [[sees(row, column) for column in recalled] for row in computed]
        expected = [known[pack.groups[t.group].prefix.digest][:, :, t.place] for t in recalled]
        assert np.array_equal(arrays.known, np.stack(expected, axis=2))
    else:
        assert not before.any()
        assert not arrays.known.any()

    last = [i for i, t in enumerate(computed) if t.document and (i + 1 == len(computed) or _ends(computed, i))]
    assert arrays.last.tolist() == last
    prefix_places = [i for i, t in enumerate(computed) if t.document is None]
    assert arrays.keep.tolist() == (prefix_places or [0])
    for i, token in enumerate(computed):
        cos, sin = np.empty((1, HEAD // 2), np.float32), np.empty((1, HEAD // 2), np.float32)
        ROTARY.write(np.array(token.positions, np.int32)[:, None], cos, sin)
        assert np.array_equal(arrays.cos[i], cos[0])
        assert np.array_equal(arrays.sin[i], sin[0])


def _ends(tokens: list[Token], i: int) -> bool:
    return tokens[i + 1].document != tokens[i].document


@given(packs(), st.integers(0, 15))
def test_what_was_kept_is_told_apart_by_prefix(pack: Pack, known_groups: int) -> None:
    known = known_of(pack, known_groups)
    layout = PackLayout(pack, known)
    arrays = empty_arrays(layout)
    layout.fill(arrays, ROTARY, features_of(pack))
    arrays.kept[:] = arrays.keep[None, None, :, None, None]  # an engine that returns the place itself
    computed = layout.computed(arrays)
    assert computed.keys() == {group.prefix.digest for group in pack.groups} - known.keys()
    for group in pack.groups:
        if group.prefix.digest in computed:
            kept = computed[group.prefix.digest]
            assert kept.shape == (LAYERS, 2, len(group.prefix), KV_HEADS, HEAD)
            places = kept[0, 0, :, 0, 0].astype(int)
            assert arrays.ids[places].tolist() == group.prefix.ids.tolist()
            assert np.array_equal(np.diff(places), np.ones(len(places) - 1))
            assert not np.shares_memory(kept, arrays.kept)


@given(packs(), st.integers(0, 15), st.integers(0, 40))
def test_no_more_rows_are_kept_than_there_is_room_for(pack: Pack, known_groups: int, most: int) -> None:
    known = known_of(pack, known_groups)
    layout, unbounded = PackLayout(pack, known, most), PackLayout(pack, known)
    arrays, every = empty_arrays(layout), empty_arrays(unbounded)
    for target, where in ((layout, arrays), (unbounded, every)):
        target.fill(where, ROTARY, features_of(pack))
        where.kept[:] = where.keep[None, None, :, None, None]
    kept, all_kept = layout.computed(arrays), unbounded.computed(every)
    lengths = {group.prefix.digest: len(group.prefix) for group in pack.groups}
    rows = sum(lengths[digest] for digest in kept)
    assert layout.keep_rows == rows <= most
    for digest in all_kept.keys() - kept.keys():
        assert rows + lengths[digest] > most
    for digest, values in kept.items():
        assert np.array_equal(values, all_kept[digest])
    # What is computed does not depend on what is kept of it.
    assert layout.tokens == unbounded.tokens
    for name in ("ids", "prefix_id", "document_id", "visual_index", "last", "known", "known_id"):
        assert np.array_equal(getattr(arrays, name), getattr(every, name))


@given(packs())
def test_an_image_takes_rows_once(pack: Pack) -> None:
    layout = PackLayout(pack, {})
    distinct = {image.digest: image.tokens for segment in pack.segments() for image in segment.images}
    assert layout.image_digests == distinct.keys()
    assert layout.visual_rows == 1 + sum(distinct.values())

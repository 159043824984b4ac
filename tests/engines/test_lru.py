from __future__ import annotations

import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orin_rerank.engines.lru import ArrayCache


def _array(nbytes: int) -> np.ndarray:
    return np.zeros(nbytes, np.uint8)


def test_forgets_what_was_used_longest_ago() -> None:
    cache: ArrayCache = ArrayCache(30)
    for name in (b"a", b"b", b"c"):
        cache.put(name, _array(10))
    assert cache.get(b"a") is not None  # so b is now the oldest
    cache.put(b"d", _array(10))
    assert [name in cache for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    assert cache.nbytes == 30
    assert cache.get(b"b") is None


def test_an_array_larger_than_the_cache_is_not_taken_and_costs_nothing_else() -> None:
    cache: ArrayCache = ArrayCache(10)
    cache.put(b"a", _array(10))
    cache.put(b"b", _array(11))
    assert (len(cache), cache.nbytes) == (1, 10)
    assert b"a" in cache


def test_without_memory_nothing_is_kept() -> None:
    cache: ArrayCache = ArrayCache(0)
    cache.put(b"a", _array(1))
    assert len(cache) == cache.nbytes == 0


def test_putting_again_replaces() -> None:
    cache: ArrayCache = ArrayCache(20)
    first, second = _array(15), _array(5)
    cache.put(b"a", first)
    cache.put(b"a", second)
    assert cache.get(b"a") is second
    assert cache.nbytes == 5


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.booleans()), max_size=60), st.integers(0, 60))
def test_counts_what_it_holds(steps: list[tuple[int, int, bool]], size: int) -> None:
    cache: ArrayCache = ArrayCache(size)
    model: dict[bytes, int] = {}  # in order of use
    for name, nbytes, put in steps:
        digest = bytes([name])
        if put and nbytes <= size:
            model.pop(digest, None)
            while sum(model.values()) + nbytes > size:
                del model[next(iter(model))]
            model[digest] = nbytes
        elif not put and digest in model:
            model[digest] = model.pop(digest)
        if put:
            cache.put(digest, _array(nbytes))
        else:
            assert (cache.get(digest) is not None) == (digest in model)
        assert cache.nbytes == sum(model.values()) <= size
        assert {bytes([n]) for n in range(6) if bytes([n]) in cache} == model.keys()


def test_threads_share_it() -> None:
    cache: ArrayCache = ArrayCache(100)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for name, nbytes in rng.integers(1, 40, (500, 2)):
            cache.put(bytes([name]), _array(int(nbytes)))
            cache.get(bytes([int(nbytes)]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [array.nbytes for n in range(40) if (array := cache.get(bytes([n]))) is not None]
    assert cache.nbytes == sum(held) <= 100

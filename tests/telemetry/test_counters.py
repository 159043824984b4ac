"""Counters under several threads."""

import threading

from orin_rerank.telemetry.counters import Counters, CountersSnapshot


def test_starts_at_zero():
    assert Counters().snapshot() == CountersSnapshot()


def test_counts_from_many_threads_are_exact():
    counters = Counters()

    def work():
        for _ in range(500):
            counters.request_ended()
            counters.request_ended("INVALID_ARGUMENT")
            counters.pack_ran(documents=3, tokens=70, images_encoded=1, images_cached=2)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.snapshot() == CountersSnapshot(
        requests=8_000,
        documents=12_000,
        errors={"INVALID_ARGUMENT": 4_000},
        packs=4_000,
        packed_tokens=280_000,
        images_encoded=4_000,
        images_cached=8_000,
    )


def test_a_snapshot_does_not_change_afterwards():
    counters = Counters()
    counters.request_ended("INTERNAL")
    before = counters.snapshot()
    counters.request_ended("INTERNAL")
    assert before.errors == {"INTERNAL": 1}

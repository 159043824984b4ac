from __future__ import annotations

import threading
import time

import pytest

from orin_rerank.engines.host_work import HostWork


@pytest.fixture(params=[False, True], ids=["processor", "gpu"])
def work(request: pytest.FixtureRequest):
    host = HostWork(for_gpu=request.param)
    yield host
    host.close()


def test_results_come_in_order(work: HostWork) -> None:
    assert work.each(lambda a, b: 10 * a + b, range(20), range(20)) == [11 * i for i in range(20)]
    assert work.each(str, []) == []


def test_a_gpu_gets_threads_and_a_processor_its_callers_own() -> None:
    def thread(_: int) -> int:
        time.sleep(0.002)
        return threading.get_ident()

    processor, gpu = HostWork(for_gpu=False), HostWork(for_gpu=True)
    try:
        assert set(processor.each(thread, range(8))) == {threading.get_ident()}
        assert threading.get_ident() not in gpu.each(thread, range(8))
    finally:
        gpu.close()


def test_an_error_comes_when_nothing_is_at_work_any_more() -> None:
    host = HostWork(for_gpu=True)
    ended = []

    def one(number: int) -> None:
        if number == 0:
            raise ValueError("zero")
        time.sleep(0.02)
        ended.append(number)

    with pytest.raises(ValueError, match="zero"):
        host.each(one, range(9))
    assert sorted(ended) == list(range(1, 9))
    host.close()


def test_on_a_gpu_one_slot_has_its_turn() -> None:
    host = HostWork(for_gpu=True)
    inside, most = 0, 0

    def run() -> None:
        nonlocal inside, most
        for _ in range(20):
            with host.turn():
                inside += 1
                most = max(most, inside)
                time.sleep(0.0005)
                inside -= 1

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    host.close()


def test_on_a_processor_slots_do_not_wait() -> None:
    host = HostWork(for_gpu=False)
    entered = threading.Event()

    def enter() -> None:
        with host.turn():
            entered.set()

    with host.turn():
        threading.Thread(target=enter, daemon=True).start()
        assert entered.wait(30)

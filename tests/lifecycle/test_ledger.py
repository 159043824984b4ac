"""The account of a calibration: every stage is in it, with what it took, however it ended."""

from __future__ import annotations

import pytest

from orin_rerank.lifecycle.ledger import Ledger


def test_stages_are_kept_in_order_with_what_they_read() -> None:
    read = 0
    told: list[tuple[str, int, int]] = []
    ledger = Ledger(lambda *what: told.append(what), lambda: read)
    with ledger.stage("first") as first:
        read += 100
        ledger.tell(first, 1, 2)
        first.pairs = 7
    with ledger.stage("second") as second:
        read += 20
    with ledger.stage("first"):
        pass
    assert [stage.name for stage in ledger.stages] == ["first", "second", "first"]
    assert ledger.stages[:2] == [first, second]
    assert (first.pairs, first.weight_bytes, second.weight_bytes) == (7, 100, 20)
    assert told == [("first", 0, 0), ("first", 1, 2), ("second", 0, 0), ("first", 0, 0)]
    assert all(0 < stage.seconds < 1 for stage in ledger.stages)


def test_a_stage_that_fails_is_on_the_account_too() -> None:
    ledger = Ledger(lambda *_: None)
    with pytest.raises(ValueError, match="no"), ledger.stage("failing"):
        raise ValueError("no")
    (stage,) = ledger.stages
    assert (stage.name, stage.weight_bytes) == ("failing", 0)
    assert stage.seconds > 0

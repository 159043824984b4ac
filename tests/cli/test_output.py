"""What reaches the terminal."""

from __future__ import annotations

from orin_rerank.cli.output import counted, score_bar, snippet


def test_a_snippet_is_one_printable_line() -> None:
    assert snippet("a\n b\tc", 10) == "a b c"
    assert snippet("\x1b[31mred\x07", 20) == "\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}"
    assert snippet("消防车", 10) == "消防车"
    assert snippet("abcdef", 4) == "abc…"
    assert snippet("abcd", 4) == "abcd"


def test_a_bar_is_as_long_as_its_score() -> None:
    assert score_bar(0.0).plain == " " * 10
    assert score_bar(1.0).plain == "█" * 10
    assert score_bar(0.5).plain == "█████     "
    assert score_bar(0.05).plain == "▌         "
    assert len(score_bar(0.999).plain) == 10


def test_numbers_agree_with_their_nouns() -> None:
    assert [counted(count, "picture") for count in (0, 1, 2)] == ["0 pictures", "1 picture", "2 pictures"]

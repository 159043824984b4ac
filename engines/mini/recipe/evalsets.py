"""Step 5: draws the large evaluation sets (and small validation sets) that figures.json reports.

    python -m recipe.evalsets --work DIR

Writes DIR/packed/evalsets.json: task -> items, and BM25's figures to DIR/packed/bm25.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .bm25 import Bm25
from .metrics import evaluate
from .pool import EMOJI_STYLES, ICON_STYLES, Item, Pool
from .records import Work

_SEED = 5
_WITHHELD = ("twemoji",)


def large(pool: Pool) -> dict[str, list[Item]]:
    """All tasks; the ones whose name begins with v_ are for watching training alone."""
    seen, test, val = (pool.emoji(split) for split in ("train", "test", "val"))
    unseen_style = pool.emoji("train", withheld=True)
    drawn, drawn_val = pool.drawn("test"), pool.drawn("val")
    return {
        "t2i_style": pool.text_to_image(unseen_style, _WITHHELD, 300),
        "t2i_newstyle": pool.text_to_image(seen, ("emojione",), 300),
        "t2i_seen": pool.text_to_image(seen, ("noto", "fluent"), 200),
        "t2i_concept": pool.text_to_image(test, EMOJI_STYLES, 300),
        "t2i_icon": pool.text_to_image(drawn, ICON_STYLES, 300),
        "t2t_lex": pool.text_to_text(test + drawn, 300, cross=False),
        "t2t_xling": pool.text_to_text(test, 300, cross=True),
        "t2t_lex_seen": pool.text_to_text(seen, 200, cross=False),
        "t2t_xling_seen": pool.text_to_text(seen, 200, cross=True),
        "gloss": pool.gloss(2, 400),
        "i2t_style": pool.image_to_text(unseen_style, _WITHHELD, 300),
        "i2t_concept": pool.image_to_text(test, EMOJI_STYLES, 300),
        "i2i_style": pool.image_to_image(unseen_style, ("noto", "fluent"), _WITHHELD, 200),
        "i2i_concept": pool.image_to_image(test, ("noto",), ("twemoji", "fluent"), 300),
        "mixed_style": pool.mixed(unseen_style, _WITHHELD, 300),
        "mixed_concept": pool.mixed(test, EMOJI_STYLES, 300),
        "v_concept": pool.text_to_image(val, EMOJI_STYLES, 100),
        "v_icon": pool.text_to_image(drawn_val, ICON_STYLES, 100),
        "v_lex": pool.text_to_text(val + drawn_val, 60, cross=False),
        "v_xling": pool.text_to_text(val, 100, cross=True),
        "v_gloss": pool.gloss(1, 120),
        "v_i2t": pool.image_to_text(val, EMOJI_STYLES, 100),
        "v_i2i": pool.image_to_image(val, ("noto",), ("twemoji", "fluent"), 80),
        "v_mixed": pool.mixed(val, EMOJI_STYLES, 80),
    }


def text_of(parts: list[dict[str, str]]) -> str:
    """The words among the parts of a query or document."""
    return " ".join(part["text"] for part in parts if "text" in part)


def bm25_figures(tasks: dict[str, list[Item]]) -> dict[str, list[float]]:
    """Mean NDCG@10, MRR and pairwise accuracy of BM25 where query and documents have words."""
    figures = {}
    for task, items in tasks.items():
        if not text_of(items[0]["query"]) or not text_of(items[0]["documents"][0]["content"]):
            continue
        ranker = Bm25([text_of(document["content"]) for item in items for document in item["documents"]])
        rows = []
        for item in items:
            query = text_of(item["query"])
            scores = [ranker.score(query, text_of(document["content"])) for document in item["documents"]]
            rows.append(evaluate(scores, [document["relevance"] for document in item["documents"]]))
        figures[task] = [round(sum(column) / len(rows), 3) for column in zip(*rows, strict=True)]
    return figures


def main() -> None:
    """Runs the step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    work = Work(parser.parse_args().work)
    tasks = large(Pool(work, _SEED))
    (work.packed / "evalsets.json").write_text(json.dumps(tasks, ensure_ascii=False), encoding="utf-8")
    figures = {"bm25": bm25_figures(tasks), "chance": evaluate([0.0] * 20, [1] + [0] * 19)}
    (work.packed / "bm25.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

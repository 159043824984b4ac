"""Step 8: joins the training run's figures, the baselines and the bars into figures.json, and prints the card's table.

python -m recipe.report --work DIR --run DIR --out figures.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

# NDCG@10 a shipped model must reach, and should.
BARS = {
    "t2i_style": (0.82, 0.87),
    "t2i_newstyle": (0.78, 0.83),
    "t2i_concept": (0.60, 0.67),
    "t2t_lex": (0.96, 0.98),
    "gloss": (0.70, 0.77),
    "t2t_xling": (0.60, 0.68),
    "i2t_style": (0.78, 0.84),
    "i2i_concept": (0.83, 0.90),
    "mixed_style": (0.90, 0.94),
}
GAP = 0.02


def verdict(value: float, bars: tuple[float, float]) -> str:
    """Which bar a figure reaches."""
    must, goal = bars
    return "goal" if value >= goal else "must" if value >= must else "**missed**"


def main() -> None:
    """Runs the step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True, help="folder with the run's figures.json")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    run = json.loads((arguments.run / "figures.json").read_text(encoding="utf-8"))
    baseline = json.loads((arguments.work / "packed" / "bm25.json").read_text(encoding="utf-8"))
    tasks = json.loads((arguments.work / "packed" / "evalsets.json").read_text(encoding="utf-8"))
    columns = ("ndcg@10", "mrr", "pairwise_accuracy")
    out: dict[str, Any] = {
        "precision": "FP16 weights run in FP32",
        "candidates": 20,
        "chance": dict(zip(columns, (round(x, 4) for x in baseline["chance"]), strict=True)),
        "tasks": {},
    }
    for task, cross in run["cross"].items():
        entry: dict[str, Any] = {"queries": len(tasks[task])}
        for name, values in (("cross", cross), ("bi", run["bi"][task]), ("bm25", baseline["bm25"].get(task))):
            if values:
                entry[name] = dict(zip(columns, values, strict=True))
        if task in BARS:
            entry["must"], entry["goal"] = BARS[task]
        out["tasks"][task] = entry
        lexical = f"{baseline['bm25'][task][0]:.3f}" if task in baseline["bm25"] else ""
        gap = run["bi"][task][0] - cross[0]
        bars = f"{BARS[task][0]:.2f} / {BARS[task][1]:.2f} | {verdict(cross[0], BARS[task])}" if task in BARS else " | "
        print(f"| {task} | {len(tasks[task])} | {cross[0]:.3f} | {cross[1]:.3f} | {cross[2]:.3f} "
              f"| {lexical} | {run['bi'][task][0]:.3f} | {'yes' if gap <= GAP else 'no'} | {bars} |")  # fmt: skip
    arguments.out.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Step 5c: writes the large evaluation sets as a folder that `orin-rerank evaluate --data` takes.

    python -m recipe.large --work DIR --out DIR

These are the sets behind figures.json, 200 to 400 queries a task; they are too large to ship.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .records import Work
from .ship import Pictures, Writer

VALIDATION = "v_"


def main() -> None:
    """Runs the step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    work = Work(arguments.work)
    sets = json.loads((work.packed / "evalsets.json").read_text(encoding="utf-8"))
    tasks = {name: items for name, items in sets.items() if not name.startswith(VALIDATION)}
    Writer(Pictures(work), arguments.out).write(tasks, {name: name for name in tasks}, shapes=False)
    print({name: len(items) for name, items in tasks.items()})


if __name__ == "__main__":
    main()

"""Sets that a tiny random model understands, what is relevant being what the model itself finds; and parts of sets."""

from __future__ import annotations

import io
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from engines.running import random_text
from evaluation.evaluation_sets import write_set
from orin_rerank.engines.bulk import score_requests
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.evaluation.dataset import DATASET_FILE
from orin_rerank.lifecycle.workbench import Workbench
from orin_rerank.prompt.content import ImagePart, RerankInput, TextPart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orin_rerank.engines.bundle import Bundle

__all__ = ["write_calibration_set", "write_judged_set", "write_part"]

_GRADED = 3
_CANDIDATES = 12


def write_calibration_set(root: Path, *, queries: int = 44, pictures: int = 6, seed: int = 1) -> Path:
    """Writes random words and pictures, in several languages as far as their tags go; six documents to a query.

    Args:
        root: A folder that is made.
        queries: How many.
        pictures: How many different pictures; without any there are none in the set.
        seed: Of everything.
    """
    rng = random.Random(seed)
    names = _write_pictures(root, pictures, seed)

    def content() -> list[dict[str, str]]:
        text = {"text": random_text(rng).text}
        return [text] if not names or rng.random() < 0.6 else [{"image": rng.choice(names)}, text]

    lines: list[dict[str, Any]] = [
        {
            "query": content(),
            "language": ("en", "de")[number % 2],
            "documents": [{"content": content()} for _ in range(6)],
        }
        for number in range(queries)
    ]
    return write_set(root, lines)


def write_judged_set(root: Path, bundle: Bundle, *, queries: int = 56, pictures: int = 6, seed: int = 2) -> Path:
    """Writes queries whose documents' grades follow the margins that a model gives in full precision.

    Args:
        root: A folder that is made.
        bundle: The model.
        queries: How many.
        pictures: How many different pictures.
        seed: Of everything.
    """
    rng = random.Random(seed)
    names = _write_pictures(root, pictures, seed)
    candidates = [(random_text(rng).text, [_candidate(rng, names) for _ in range(_CANDIDATES)]) for _ in range(queries)]
    requests = [
        RerankInput([TextPart(query)], [list(_parts(document, root)) for document in documents])
        for query, documents in candidates
    ]
    with tempfile.TemporaryDirectory() as scratch:
        bench = Workbench(bundle, Path(scratch), EngineSettings(threads=1))
        runner = bench.full()
        margins = score_requests(runner, map(bench.encoder.encode, requests), bench.budget).margins
        runner.close()
    lines: list[dict[str, Any]] = []
    for number, ((query, documents), values) in enumerate(zip(candidates, margins, strict=True)):
        order = values.argsort()[:: -(_CANDIDATES // _GRADED)][:_GRADED]  # far enough apart to survive INT8
        graded = [
            {"content": documents[place], "relevance": _GRADED - 1 - rank} for rank, place in enumerate(order.tolist())
        ]
        rng.shuffle(graded)
        lines.append({"id": f"q{number}", "split": "random", "query": [{"text": query}], "documents": graded})
    return write_set(root, lines)


def write_part(root: Path, whole: Path, every: int) -> Path:
    """Writes every n-th line of a set, with its pictures, as a set of its own.

    Args:
        root: A folder that is made.
        whole: The set.
        every: n; the first line is among them.
    """
    lines = [json.loads(line) for line in (whole / DATASET_FILE).read_text(encoding="utf-8").splitlines()[::every]]
    for line in lines:
        for part in (*line["query"], *(part for document in line["documents"] for part in document["content"])):
            if "image" in part:
                (root / part["image"]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(whole / part["image"], root / part["image"])
    return write_set(root, lines)


def _candidate(rng: random.Random, names: list[str]) -> list[dict[str, str]]:
    text = {"text": random_text(rng).text}
    return [{"image": rng.choice(names)}, text] if names and rng.random() < 0.3 else [text]


def _parts(content: list[dict[str, str]], root: Path) -> Iterator[TextPart | ImagePart]:
    for part in content:
        if "text" in part:
            yield TextPart(part["text"])
        else:
            yield ImagePart((root / part["image"]).read_bytes())


def _write_pictures(root: Path, count: int, seed: int) -> list[str]:
    """Pictures of stripes, no two alike."""
    rng = random.Random(seed)
    (root / "images").mkdir(parents=True)
    names = [f"images/{number}.png" for number in range(count)]
    for name in names:
        picture = Image.new("RGB", (32, 32 + 16 * rng.randrange(3)))
        colours = [tuple(rng.randrange(256) for _ in range(3)) for _ in range(2)]
        width = rng.randint(2, 9)
        for x in range(picture.width):
            picture.paste(colours[x // width % 2], (x, 0, x + 1, picture.height))
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        (root / name).write_bytes(buffer.getvalue())
    return names

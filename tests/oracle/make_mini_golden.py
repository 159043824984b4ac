"""Writes the golden pairs that a bundle ships: the margins that transformers gives, in float32, on its own weights.

    python tests/oracle/make_mini_golden.py BUNDLE OUT

Pairs come from the calibration set, every kind of it, and from the demonstration's pictures. Export the bundle again
with `--golden OUT` afterwards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from engines.running import make_encoder, open_bundle
from oracle.graph_reference import Reference, load_reference
from orin_rerank.evaluation.dataset import parse_content
from orin_rerank.prompt.content import RerankInput
from orin_rerank.prompt.tokenizer import PromptTokenizer

PER_SPLIT = 6
PICTURES = ROOT / "deploy" / "demo" / "images"
EXTRA = [
    ([{"text": "fire engine"}], [{"image": PICTURES / "fire-engine.webp"}], None),
    ([{"text": "消防车"}], [{"image": PICTURES / "fire-engine.webp"}], None),
    ([{"text": "Erdbeere"}], [{"image": PICTURES / "whale.webp"}], None),
    ([{"image": PICTURES / "panda.webp"}], [{"text": "panda"}], None),
    ([{"image": PICTURES / "panda.webp"}, {"text": "animal"}], [{"image": PICTURES / "fox.webp"}], None),
    ([{"text": "(volcano)?"}], [{"text": '"volcano": mountain,\n lava'}], None),
    ([{"text": "red fruit"}], [{"text": "strawberry"}], "Given a description, retrieve what it describes."),
]


def calibration_pairs() -> list[tuple[list[dict], list[dict], None]]:
    """The first relevant and the first other document of some queries of each split."""
    folder = ROOT / "calibration_data" / "calibration"
    taken: dict[str, int] = {}
    pairs = []
    for line in (folder / "dataset.jsonl").read_text(encoding="utf-8").splitlines():
        query = json.loads(line)
        count = taken.get(query["split"], 0)
        if count == PER_SPLIT:
            continue
        taken[query["split"]] = count + 1
        document = query["documents"][count % 2 if len(query["documents"]) > 1 else 0]
        sides = [
            [{"image": folder / part["image"]} if "image" in part else part for part in side]
            for side in (query["query"], document["content"])
        ]
        pairs.append((*sides, None))
    return pairs


def main() -> None:
    """Writes pairs.jsonl and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    bundle = open_bundle(options.bundle)
    encoder = make_encoder(bundle)
    tokenizer = PromptTokenizer.from_file(options.bundle / "tokenizer.json")
    model = load_reference(options.bundle, vl=True)
    image = bundle.manifest.prompt.image
    reference = Reference(model, tokenizer, image, None)
    shutil.rmtree(options.out, ignore_errors=True)
    (options.out / "images").mkdir(parents=True)
    lines = []
    for query, document, instruction in [*calibration_pairs(), *EXTRA]:
        shipped = []
        for side in (query, document):
            parts = []
            for part in side:
                if "image" in part:
                    shutil.copyfile(part["image"], options.out / "images" / part["image"].name)
                    parts.append({"image": f"images/{part['image'].name}"})
                else:
                    parts.append(part)
            shipped.append(parts)
        contents = [parse_content(side, root=options.out, where="golden") for side in shipped]
        encoded = encoder.encode(RerankInput(contents[0], [contents[1]], instruction))
        margin = reference.margin(encoded.prefix, encoded.documents[0])
        record = {"query": shipped[0], "document": shipped[1], "margin": round(float(margin), 6)}
        if instruction is not None:
            record["instruction"] = instruction
        lines.append(json.dumps(record, ensure_ascii=False))
    (options.out / "pairs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} pairs in {options.out}")


if __name__ == "__main__":
    main()

"""Writes tests/graph/golden/margins.json: what transformers gives for the golden pairs, so that no torch is needed.

Run with transformers and torch installed: `python tests/oracle/make_graph_golden.py`. Weights come from formulas
(graph/checkpoints.py), pictures too; prompts are encoded by the product, whose own tests hold it to the reference.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from engines.running import make_encoder, open_bundle, pairs_of
from graph.checkpoints import write_checkpoint
from graph.golden_requests import CONFIGS, GOLDEN, golden_requests
from oracle.graph_reference import Reference, load_reference
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.prompt.content import RerankInput
from orin_rerank.prompt.tokenizer import PromptTokenizer


def margins(folder: Path, name: str) -> list[float]:
    checkpoint = write_checkpoint(folder / "checkpoint", CONFIGS[name])
    export_checkpoint(checkpoint, folder / "bundle", ExportOptions(max_tokens=1024, min_pixels=1))
    bundle = open_bundle(folder / "bundle")
    encoder = make_encoder(bundle)
    requests = [encoder.encode(RerankInput(query, documents)) for query, documents in golden_requests(name)]
    model = load_reference(checkpoint, vl=name == "vl")
    tokenizer = PromptTokenizer.from_file(checkpoint / "tokenizer.json")
    reference = Reference(model, tokenizer, bundle.manifest.prompt.image, None)
    return [round(reference.margin(*pair), 6) for pair in pairs_of(requests)]


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    golden = {}
    for name in CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            golden[name] = margins(Path(folder), name)
    (GOLDEN / "margins.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()

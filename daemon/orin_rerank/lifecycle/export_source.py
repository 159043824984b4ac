"""A checkpoint, read and found fit for export: everything that can be refused is refused before a byte is written."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from tokenizers import Tokenizer

from orin_rerank import __version__
from orin_rerank.engines.bundle import TOKENIZER_FILE
from orin_rerank.engines.graph_files import model_weights
from orin_rerank.engines.sealed import json_digest
from orin_rerank.errors import CheckpointError
from orin_rerank.graph.architecture import Architecture, read_architecture
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.checkpoint_names import CLASSIFIER, HEAD, account_for, with_canonical_names
from orin_rerank.graph.config_file import is_classifier, read_config
from orin_rerank.graph.text import embedding_name
from orin_rerank.graph.weights import MARGIN_ROW, CheckpointTensors, WeightFile
from orin_rerank.prompt.templates import IMAGE_PAD, VISION_END, VISION_START
from orin_rerank.prompt.tokenizer import PromptTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Literal

    from orin_rerank.prompt.encoded import Float32Array

__all__ = ["ExportSource", "read_source"]

_TOKEN_KEYS: Final = {
    "image_token_id": IMAGE_PAD,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
}
_POOLING: Final = "Pooling"
_ADAPTER: Final = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class ExportSource:
    """What an export needs of a checkpoint.

    Attributes:
        folder: Where it lies.
        architecture: The model's.
        tokenizer: Its own.
        weights: Layout of the weights to be written.
        tensors: What they are written from.
        renamed: Prefixes of tensor names that were replaced, each with what replaced it.
        ignored: Tensors that the model does not use, and an adapter that lies beside them.
    """

    folder: Path
    architecture: Architecture
    tokenizer: PromptTokenizer
    weights: WeightFile
    tensors: CheckpointTensors
    renamed: Mapping[str, str]
    ignored: tuple[str, ...]

    @property
    def identity(self) -> str:
        """A digest of all that the written weights follow from: the same as long as nothing was exchanged."""
        files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self.tensors.checkpoint.files]
        return json_digest(
            {
                "version": __version__,
                "layout": hashlib.sha256(self.weights.header).hexdigest(),
                "files": files,
                "renamed": dict(self.renamed),
                "margin_row": hashlib.sha256(self.tensors.margin_row.tobytes()).hexdigest(),
            }
        )


def read_source(folder: Path, matrices: Literal["F16", "F32"] | None) -> ExportSource:
    """Reads what is small of a checkpoint, and the headers of its weights.

    Args:
        folder: In Hugging Face layout.
        matrices: How embedding and projections are to be stored; None keeps float32 and makes float16 of all else.

    Raises:
        CheckpointError: If the checkpoint cannot become a bundle; the item names the key, file or tensor.
        BundleError: If the tokenizer cannot be used.
    """
    config = read_config(folder)
    architecture = read_architecture(folder)
    vl = architecture.vision is not None
    _refuse_embedding_model(folder)
    tensors, renamed = with_canonical_names(Checkpoint.open(folder), vl=vl)
    tokenizer = _tokenizer(folder, config, architecture)
    weights = _weight_file(tensors, architecture, matrices)
    classifier = is_classifier(config)
    row = (_classifier_row if classifier else _margin_row)(tensors, architecture, tokenizer)
    used = {spec.name for spec in weights.specs} | {CLASSIFIER if classifier else HEAD}
    ignored = account_for(tensors, used, vl=vl)
    if (folder / _ADAPTER).exists():  # merged, one hopes: what was merged may lie in the folder of its adapter
        ignored.append(_ADAPTER)
    return ExportSource(
        folder, architecture, tokenizer, weights, CheckpointTensors(tensors, row), renamed, tuple(ignored)
    )


def _tokenizer(folder: Path, config: Mapping[str, Any], architecture: Architecture) -> PromptTokenizer:
    file = folder / TOKENIZER_FILE
    if not file.exists():
        raise CheckpointError(
            "the checkpoint lacks this file; AutoTokenizer.from_pretrained(...).save_pretrained(...) writes it",
            item=str(file),
        )
    tokenizer = PromptTokenizer.from_file(file)
    size = Tokenizer.from_file(str(file)).get_vocab_size()
    if size > architecture.text.vocabulary:
        raise CheckpointError(
            f"the tokenizer has {size} tokens, the embedding {architecture.text.vocabulary}", item="vocab_size"
        )
    for key, token in _TOKEN_KEYS.items() if architecture.vision is not None else ():
        if config.get(key) is not None and config[key] != tokenizer.special_id(token):
            raise CheckpointError(
                f"is {config[key]}, but the tokenizer gives {token.name} the id {tokenizer.special_id(token)}", item=key
            )
    return tokenizer


def _weight_file(tensors: Checkpoint, architecture: Architecture, matrices: Literal["F16", "F32"] | None) -> WeightFile:
    """The layout of the weights, once the checkpoint is known to hold each of them."""
    entry = tensors.entry(embedding_name(vl=architecture.vision is not None))
    kept = "F32" if entry.dtype in ("F32", "F64") else "F16"
    weights = model_weights(architecture, matrices or kept)
    for spec in weights.specs:
        if spec.name != MARGIN_ROW:
            tensors.entry(spec.name, spec.shape)
    return weights


def _margin_row(tensors: Checkpoint, architecture: Architecture, tokenizer: PromptTokenizer) -> Float32Array:
    """The head reduced to what a score needs: the row of "yes" minus the row of "no", in float32."""
    text = architecture.text
    embedding = embedding_name(vl=architecture.vision is not None)
    if not text.tied and HEAD not in tensors:
        raise CheckpointError(
            "config.json says that the head is not the embedding (tie_word_embeddings), but there is no head", item=HEAD
        )
    answers = (tokenizer.yes_id, tokenizer.no_id)
    yes, no = _rows(tensors, embedding if text.tied else HEAD, (text.vocabulary, text.hidden), answers)
    if text.tied and HEAD in tensors:
        # Releases of transformers differ in which of the two counts.
        stored = _rows(tensors, HEAD, (text.vocabulary, text.hidden), answers)
        if not all(map(np.array_equal, stored, (yes, no))):
            raise CheckpointError(
                "config.json says that the head is the embedding (tie_word_embeddings), but this is another one",
                item=HEAD,
            )
    return cast("Float32Array", yes - no)


def _classifier_row(tensors: Checkpoint, architecture: Architecture, _: PromptTokenizer) -> Float32Array:
    """The one row of a classifier, which a conversion made as the row of "yes" minus the row of "no"."""
    tensors.entry(CLASSIFIER, (1, architecture.text.hidden))
    return _rows(tensors, CLASSIFIER, (1, architecture.text.hidden), (0,))[0]


def _rows(tensors: Checkpoint, name: str, shape: tuple[int, int], rows: tuple[int, ...]) -> list[Float32Array]:
    tensors.entry(name, shape)
    return [tensors.read(name, row, row + 1)[0].astype(np.float32) for row in rows]


def _refuse_embedding_model(folder: Path) -> None:
    """The embedding models of both families have the rerankers' architecture; what they lack is the training."""
    path = folder / "modules.json"
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        pools = any(str(module["type"]).endswith(_POOLING) for module in modules)
    except (OSError, ValueError, KeyError, TypeError):
        return
    if pools:
        raise CheckpointError("this is an embedding model, not a reranker: it pools", item=str(path))

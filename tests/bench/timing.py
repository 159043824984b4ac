"""How a call is timed, and which batch size suits transformers best."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from transformers_model import TransformersModel

from orin_rerank.prompt.encoded import EncodedRequest

__all__ = ["best_batch", "timed"]

BATCHES = (1, 2, 4, 8, 16)
SETTLE_S = 0.3
Result = TypeVar("Result")


def timed(call: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds that a call takes, and what it returns.

    Before it starts, worker threads of whatever ran last, which wait for more work by spinning, come to rest.
    """
    time.sleep(SETTLE_S)
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def best_batch(model: TransformersModel, request: EncodedRequest) -> int:
    """The batch size at which transformers is fastest on this request, batched by length."""
    sizes = [size for size in BATCHES if size <= len(request.documents)]
    model.score(request, 1)
    times = {size: min(timed(lambda size=size: model.score(request, size))[0] for _ in range(2)) for size in sizes}
    return min(times, key=times.__getitem__)

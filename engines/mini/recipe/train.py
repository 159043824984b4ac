"""Step 6: trains the model on one CUDA GPU (or, with --tiny, proves on a CPU that the code runs).

    python -m recipe.train --packed DIR --tokenizer tokenizer.json --teacher DIR --out DIR

Two stages under one schedule by the clock. First mostly contrast (bi-encoder), with more and more
cross-encoder steps among it; then cross-encoder steps alone, whose loss keeps the contrast and pulls
each listwise distribution towards the bi-encoder's: a cross-encoder that starts alone forgets what
contrast had taught. Every kind of step is captured as one CUDA graph, since launching its thousands of
small kernels one by one takes several times as long as running them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import teacher
from .batches import KINDS, Sampler
from .data import TrainingData, decode_all
from .evaluate import figures, packed_scorer
from .losses import Dials, Objective
from .model import FastModel, build
from .prompt import Vocabulary, load_tokenizer
from .sequence import Assembler

BI_SHARES = dict(zip(KINDS, (0.36, 0.10, 0.06, 0.09, 0.16, 0.05, 0.11, 0.05, 0.02), strict=True))
CROSS_SHARES = dict(zip(KINDS, (0.31, 0.10, 0.08, 0.11, 0.14, 0.03, 0.11, 0.10, 0.02), strict=True))
EMA_EVERY = 10


@dataclass(frozen=True)
class Plan:
    """Sizes and schedule."""

    bi_seconds: float
    cross_seconds: float
    batch: int = 512
    candidates: int = 8
    peak: float = 8e-4
    turn: float = 3.5e-4
    warmup: int = 400
    weight_decay: float = 0.05
    ema: float = 0.99

    @property
    def seconds(self) -> float:
        """Training time in all."""
        return self.bi_seconds + self.cross_seconds

    def stage(self, elapsed: float) -> tuple[bool, float]:
        """Whether the second stage has begun, and how much of the stage has passed."""
        if elapsed < self.bi_seconds:
            return False, elapsed / self.bi_seconds
        return True, min(1.0, (elapsed - self.bi_seconds) / max(1e-9, self.cross_seconds))

    def rate(self, elapsed: float, step: int) -> float:
        """Learning rate: two half cosines, so that the second stage goes on gently."""
        second, part = self.stage(elapsed)
        high, low = (self.turn, self.turn * 0.01) if second else (self.peak, self.turn)
        curve = 0.5 * (1 + math.cos(math.pi * part))
        return (low + (high - low) * curve) * min(1.0, (step + 1) / self.warmup)

    def cross_share(self, elapsed: float) -> float:
        """Share of cross-encoder steps."""
        second, part = self.stage(elapsed)
        return 1.0 if second else 0.3 * max(0.0, part - 0.5) / 0.5

    def turn_dials(self, dials: Dials, elapsed: float) -> None:
        """Eases augmentation, distillation and contrast off at the end."""
        second, part = self.stage(elapsed)
        dials.strength.fill_(1 - 0.7 * max(0.0, (part - 0.85) / 0.15) if second else 1.0)
        dials.distil.fill_(1 - 0.7 * part if second else 1.0)
        dials.contrast.fill_(1 - 0.7 * part if second else 1.0)


class Trainer:
    """Model, optimiser and captured steps."""

    def __init__(self, fast: FastModel, objective: Objective, sampler: Sampler, plan: Plan) -> None:
        self.fast, self.objective, self.sampler, self.plan = fast, objective, sampler, plan
        self.device = fast.device
        unique = {id(p): p for p in [*fast.model.parameters(), *objective.parameters()]}
        self.parameters = list(unique.values())
        self.rate = torch.tensor(1e-5, device=self.device)
        groups = [
            {"params": [p for p in self.parameters if p.dim() > 1], "weight_decay": plan.weight_decay},
            {"params": [p for p in self.parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        cuda = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.98), fused=cuda, capturable=cuda)
        self.keys = [(mode, kind) for mode in ("bi", "cross") for kind in KINDS]
        self.seen = {key: torch.zeros(3, device=self.device) for key in self.keys}
        self.skipped = torch.zeros((), device=self.device)
        self.snapshots: list[list[Tensor]] = []
        self.graphs: dict[tuple[str, str], torch.cuda.CUDAGraph] = {}
        self.average = [p.detach().clone() for p in self.parameters]

    def eager(self, key: tuple[str, str]) -> None:
        """One whole step, launched kernel by kernel."""
        mode, kind = key
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            batch = self.sampler.batch(kind, self.plan.batch)
            candidates = self.plan.candidates // 2 if kind == "long" else self.plan.candidates
            loss, hit = self.objective.bi(batch) if mode == "bi" else self.objective.cross(batch, candidates)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        # The fused optimiser leaves everything as it is where this says so: one bad batch, no bad weights.
        bad = (~torch.isfinite(norm)).float()
        if self.device.type == "cuda":
            self.optimizer.found_inf = bad  # type: ignore[attr-defined]
        self.optimizer.step()
        self.skipped += bad
        now = torch.stack([loss.detach().float(), hit.float(), norm]).nan_to_num(0.0, 0.0, 0.0)
        self.seen[key].lerp_(now, 0.05)

    def prepare(self, log: Any) -> None:
        """Warms every step up (which compiles it and fills the optimiser's state), then captures it."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        pool = torch.cuda.graph_pool_handle()
        for key in self.keys:
            begun = time.time()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self.eager(key)
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            log(f"warm {key} {time.time() - begun:.1f} s")
        for key in self.keys:
            try:
                self.optimizer.zero_grad(set_to_none=True)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    self.eager(key)
                self.graphs[key] = graph
            except RuntimeError:
                log(f"no graph for {key}", traceback.format_exc()[-1500:])
                torch.cuda.synchronize()
        for key in self.keys:
            torch.cuda.synchronize()
            begun = time.time()
            for _ in range(4):
                self.step(key)
            torch.cuda.synchronize()
            log(f"bench {key} {(time.time() - begun) / 4 * 1e3:.1f} ms graph={key in self.graphs}")
        log(f"memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")

    def step(self, key: tuple[str, str]) -> None:
        """One step, replayed where it was captured."""
        if key in self.graphs:
            self.graphs[key].replay()
        else:
            self.eager(key)

    def update_average(self) -> None:
        """Moves the running mean of the weights."""
        with torch.no_grad():
            torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - self.plan.ema)

    def snapshot(self) -> None:
        """Keeps the running mean of the weights, the last three of them."""
        self.snapshots = [*self.snapshots[-2:], [mean.clone() for mean in self.average]]

    def restore(self) -> None:
        """Goes back to the oldest snapshot, without the momentum that led away from it."""
        with torch.no_grad():
            for p, mean, kept in zip(self.parameters, self.average, self.snapshots[0], strict=True):
                p.copy_(kept)
                mean.copy_(kept)
            for state in self.optimizer.state.values():
                state["exp_avg"].zero_()

    def swap(self) -> None:
        """Exchanges the weights and their running mean."""
        with torch.no_grad():
            for p, mean in zip(self.parameters, self.average, strict=True):
                kept = p.detach().clone()
                p.copy_(mean)
                mean.copy_(kept)


def half_state(model: Any) -> dict[str, Tensor]:
    """FP16 weights on the host, the tied head left out."""
    return {
        name: value.detach().to("cpu", torch.float16).contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"
    }


def save(path: Path, model: Any) -> None:
    """Writes FP16 weights; whoever looks sees the old file or the new one."""
    from safetensors.torch import save_file

    temporary = path.with_suffix(".part")
    save_file(half_state(model), str(temporary), metadata={"format": "pt"})
    temporary.replace(path)


def main() -> None:
    """Runs the step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packed", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--teacher", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bi-seconds", type=float, default=240)
    parser.add_argument("--cross-seconds", type=float, default=540)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="a few steps of 8 rows, without the pictures")
    arguments = parser.parse_args()
    begun = time.time()
    arguments.out.mkdir(parents=True, exist_ok=True)

    def log(*words: object) -> None:
        print(f"[{time.time() - begun:.0f}s]", *words, flush=True)

    torch.manual_seed(arguments.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch._dynamo.config.cache_size_limit = 64
    tokenizer = load_tokenizer(arguments.tokenizer)
    vocabulary = Vocabulary.of(tokenizer)
    pixels = None if arguments.tiny else decode_all(arguments.packed)
    data = TrainingData(arguments.packed, device, pixels)
    log("concepts", {n: len(getattr(data, n)) for n in ("emoji", "icons", "clips", "terms", "paired", "synsets")})
    if arguments.teacher:
        rows = teacher.taught_texts(arguments.packed)[: 200 if arguments.tiny else None]
        texts = json.loads((arguments.packed / "texts.json").read_text(encoding="utf-8"))
        data.teach(rows, teacher.vectors(arguments.teacher, [texts[n] for n in rows], device))
        log("teacher", len(rows))
    model = build(vocabulary).to(device)
    fast = FastModel(model, vocabulary, compiled=not arguments.tiny)
    sampler = Sampler(data, vocabulary)
    dials = Dials(device)
    objective = Objective(Assembler(fast), data, dials, teacher.WIDTH)
    small = {"batch": 16, "warmup": 2} if arguments.tiny else {}
    plan = Plan(arguments.bi_seconds, arguments.cross_seconds, **small)
    trainer = Trainer(fast, objective, sampler, plan)
    tasks: dict[str, Any] = json.loads((arguments.packed / "evalsets.json").read_text(encoding="utf-8"))
    if arguments.tiny:
        tasks = {task: items[:1] for task, items in tasks.items()}
    else:
        trainer.prepare(log)
    shown = np.zeros((len(data.picture_fixed), 3, 128, 128), np.uint8) if pixels is None else pixels
    plain = FastModel(model, vocabulary)  # evaluation shapes vary too much to compile

    @torch.no_grad()
    def evaluate(names: list[str], *, cross: bool, limit: int | None) -> dict[str, list[float]]:
        chosen = {name: tasks[name][:limit] for name in names}
        scorer, number = packed_scorer(plain, tokenizer, chosen, shown)
        return {name: figures(scorer, items, number, cross=cross)[0] for name, items in chosen.items()}

    watched = [name for name in tasks if name.startswith("v_")]
    reported = [name for name in tasks if not name.startswith("v_")]
    history = run(trainer, plan, dials, log, lambda: evaluate(watched, cross=True, limit=60), arguments)
    trainer.swap()
    rounded = half_state(model)
    model.load_state_dict({name: value.float() for name, value in rounded.items()}, strict=False)
    save(arguments.out / "model.safetensors", model)
    result: dict[str, Any] = {
        "cross": evaluate(reported, cross=True, limit=None),
        "bi": evaluate(reported, cross=False, limit=None),
        "history": history,
        "seconds": time.time() - begun,
    }
    (arguments.out / "figures.json").write_text(json.dumps(result, indent=1))
    for name in reported:
        log(f"{name:16} cross {result['cross'][name]} bi {result['bi'][name]}")
    log("done")


def run(trainer: Trainer, plan: Plan, dials: Dials, log: Any, validate: Any, arguments: Any) -> list[Any]:
    """The training loop; returns what validation saw on the way."""
    draw = random.Random(arguments.seed)
    checks = [plan.seconds * share for share in (0.3, 0.45, 0.7, 0.9)]
    history: list[Any] = []
    begun, paused, told, step = time.time(), 0.0, time.time(), 0
    gentle, skipped, kept = 1.0, 0.0, time.time()
    trainer.snapshot()
    while True:
        elapsed = time.time() - begun - paused
        if elapsed >= plan.seconds:
            break
        cross = draw.random() < plan.cross_share(elapsed)
        shares = CROSS_SHARES if cross else BI_SHARES
        kind = draw.choices(KINDS, [shares[k] for k in KINDS])[0]
        trainer.rate.fill_(gentle * plan.rate(elapsed, step))
        if step % 20 == 0:
            plan.turn_dials(dials, elapsed)
            if trainer.device.type == "cuda":
                torch.cuda.synchronize()  # keeps the clock of the schedule honest
        trainer.step(("cross" if cross else "bi", kind))
        step += 1
        if step % EMA_EVERY == 0:
            trainer.update_average()
        if step % 100 == 0:
            count = float(trainer.skipped)
            if count - skipped > 30:  # the weights themselves have gone astray
                trainer.restore()
                gentle *= 0.5
                log(f"RESTORED at step {step}, rate now x {gentle}")
            skipped = count
            if time.time() - kept > 25 and count == skipped:
                kept = time.time()
                trainer.snapshot()
        if time.time() - told > 20:
            told = time.time()
            log(f"skipped {skipped:.0f}", f"scale {float(trainer.objective.log_scale.detach().exp()):.1f}")
            seen = {f"{m} {k}": [round(x, 3) for x in v.tolist()] for (m, k), v in trainer.seen.items()}
            seen = {key: values for key, values in seen.items() if values[0]}
            log(f"step {step} at {elapsed:.0f}s rate {float(trainer.rate):.1e}", seen)
        if checks and elapsed >= checks[0]:
            checks.pop(0)
            pause = time.time()
            trainer.swap()
            found = validate()
            save(arguments.out / "model.safetensors", trainer.fast.model)
            trainer.swap()
            mean = sum(v[0] for v in found.values()) / len(found)
            log(f"VALIDATION step {step} mean {mean:.4f}", {k: v[0] for k, v in found.items()})
            history.append([step, round(elapsed), round(mean, 4), {k: v[0] for k, v in found.items()}])
            paused += time.time() - pause
    log("steps", step)
    os.sync()
    return history


if __name__ == "__main__":
    main()

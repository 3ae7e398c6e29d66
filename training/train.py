"""Trains sgl-nano in one run: prepares data in worker processes, trains, scores, writes the model.

    python -m training.train --data ../shared/data --out runtime/nano --minutes 9

The learning rate follows the wall clock: warm-up, constant, then down to zero when the time is over.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from sgl.runtime.nano.nano_prompts import START, render
from training.feed import Feed, Marker, Rows, start_workers
from training.model import AttentionKind, BlockAttention, CausalAttention, DenseAttention, Nano, Shape
from training.optimizer import MATRIX_RATE, OTHER_RATE, Optimizer
from training.packing import ROW, pack
from training.probes import PROBES, conversation, sample
from training.tokenizer import token_id

WARMUP_STEPS = 100
COOLDOWN = 0.55
"""Share of the time in which the learning rate falls linearly to zero."""
PROMPT_WEIGHT = (0.1, 0.05)
"""Weight of the loss on prompts, at the beginning and at the end; answers weigh 1."""
CLIP = 1.0
IN_FLIGHT = 10
PROBE_COUNT = 400
ATTENTIONS: dict[str, type[AttentionKind]] = {
    "flex": BlockAttention,
    "causal": CausalAttention,
    "dense": DenseAttention,
}


@dataclass
class Log:
    """Lines for the screen and for a file, written as they come."""

    path: Path
    begun: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.path.write_text("", encoding="utf-8")

    def __call__(self, text: str) -> None:
        line = f"[{time.perf_counter() - self.begun:7.1f} s] {text}"
        with self.path.open("a", encoding="utf-8") as file:
            print(line, file=file)
        print(line, flush=True)


class Trainer:
    """The model with its loss on one device."""

    def __init__(self, model: Nano, device: str, attention: str, rates: tuple[float, float], log: Log) -> None:
        self.device = torch.device(device)
        self.log = log
        self.model = model.to(self.device)
        self.optimizer = Optimizer(self.model, *rates)
        self.attention = ATTENTIONS[attention]()
        cuda = self.device.type == "cuda"
        self.loss = torch.compile(self._losses, dynamic=False) if cuda else self._losses

    def _losses(self, rows: Tensor, answers: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
        """Mean loss of the answers and of the rest, in nats a token."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            logits = self.model(rows, self.attention.attend, mask)
        following = rows.roll(-1, 1).flatten()
        losses = F.cross_entropy(logits.flatten(0, 1).float(), following, reduction="none")
        is_answer = F.pad(answers[:, 1:], (0, 1)).flatten().float()
        is_prompt = F.pad(~answers[:, 1:], (0, 1)).flatten().float()
        return _weighted_mean(losses, is_answer), _weighted_mean(losses, is_prompt)

    def losses(self, batch: Rows) -> tuple[Tensor, Tensor]:
        rows = self._move(batch.tokens).long()
        mask = self.attention.mask(self._move(batch.documents))
        return self.loss(rows, self._move(batch.answers), mask)

    def _move(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

    def step(self, batch: Rows, progress: float, steps: int) -> tuple[Tensor, Tensor]:
        answer, prompt = self.losses(batch)
        first, last = PROMPT_WEIGHT
        (answer + (first + (last - first) * progress) * prompt).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step(rate_factor(progress, steps))
        return answer.detach(), prompt.detach()


def _weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum() / weights.sum().clamp(min=1)


def rate_factor(progress: float, steps: int) -> float:
    """Warm-up by steps, then constant, then linearly down to zero by the share of time gone."""
    return min(1.0, (steps + 1) / WARMUP_STEPS, max(0.0, (1 - progress) / COOLDOWN))


def checked_trainer(args: argparse.Namespace, shape: Shape, marker: Marker, log: Log) -> Trainer:
    """A trainer whose attention works here: FlexAttention on CUDA, or else what torch always has."""
    rates = (args.matrix_rate, args.other_rate)
    names = [args.attention] if args.attention != "auto" else ["flex", "causal"]
    if args.attention == "auto" and args.device == "cpu":
        names = ["dense"]
    for name in names:
        torch.manual_seed(args.seed)
        trainer = Trainer(Nano(shape, args.dropout), args.device, name, rates, log)
        try:
            answer, prompt = trainer.losses(_trial(marker, args.batch))
            (answer + prompt).backward()
            trainer.model.zero_grad(set_to_none=True)
        except Exception as error:
            if name == names[-1]:
                raise
            log(f"attention {name!r} does not work here ({type(error).__name__}: {str(error)[:300]}); trying the next")
            torch.compiler.reset()
            continue
        log(f"attention {name!r}, {sum(p.numel() for p in trainer.model.parameters()):,} parameters")
        return trainer
    raise AssertionError("unreachable: the last attention either works or raises")


def _trial(marker: Marker, batch: int) -> Rows:
    """Rows of random text with document starts, only to compile and to try."""
    rows = np.random.default_rng(0).integers(300, 8192, (batch, ROW)).astype(np.uint16)
    rows[:, ::400] = marker.start
    rows[:, 50::100] = marker.assistant
    return marker(rows)


def held_back_rows(data: Path, tokenizer: Tokenizer, marker: Marker, batch: int) -> dict[str, Rows]:
    """One batch of packed rows of each held-back task."""
    rows = {}
    for task in PROBES:
        texts = [render(conversation(probe)) for probe in sample(data, task, PROBE_COUNT, seed=1)]
        encoded = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
        packed = pack(encoded, token_id(tokenizer, START))
        repeats = -(-batch // len(packed))
        rows[task] = marker(np.concatenate([packed] * repeats)[:batch])
    return rows


@torch.no_grad()
def held_back_losses(trainer: Trainer, rows: dict[str, Rows]) -> dict[str, float]:
    trainer.model.eval()
    losses = {task: round(trainer.losses(batch)[0].item(), 4) for task, batch in rows.items()}
    trainer.model.train()
    return losses


def run(trainer: Trainer, feed: Feed, rows: dict[str, Rows], args: argparse.Namespace, log: Log) -> None:
    """Train until the minutes are over, counted from the start of the log, or for --steps."""
    begun = last = time.perf_counter()
    seconds = log.begun + args.minutes * 60 - begun
    steps = counted = 0
    while True:
        progress = steps / args.steps if args.steps else (time.perf_counter() - begun) / seconds
        if progress >= 1:
            break
        answer, prompt = trainer.step(feed.next(), progress, steps)
        steps += 1
        if steps % IN_FLIGHT == 0:
            value = answer.item()
            if not np.isfinite(value):
                raise FloatingPointError(f"the loss is {value} at step {steps}: try a lower --matrix-rate")
        if steps % args.report == 0:
            now = time.perf_counter()
            speed = (steps - counted) * args.batch * ROW / (now - last)
            last, counted = now, steps
            log(
                f"step {steps} ({progress:.0%}) answers {answer.item():.4f} prompts {prompt.item():.4f} "
                f"{speed / 1e6:.2f}M tokens/s, passes {feed.passes:.2f}, rate x{rate_factor(progress, steps):.2f}"
            )
        if steps % (args.report * 10) == 0:
            log(f"held back: {held_back_losses(trainer, rows)}")
    log(f"{steps} steps, {steps * args.batch * ROW / 1e6:.0f}M tokens, passes {feed.passes:.2f}")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train sgl-nano.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tokenizer", type=Path, default=Path("runtime/nano/tokenizer.json"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="from the start of the program to the end of training"
    )
    parser.add_argument("--steps", type=int, default=0, help="train for so many steps instead of minutes")
    parser.add_argument("--batch", type=int, default=64, help=f"rows of {ROW} tokens a step")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 4))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--attention", choices=["auto", *ATTENTIONS], default="auto")
    parser.add_argument("--matrix-rate", type=float, default=MATRIX_RATE)
    parser.add_argument("--other-rate", type=float, default=OTHER_RATE)
    parser.add_argument("--dropout", type=float, default=0.05, help="in training only")
    parser.add_argument("--report", type=int, default=100, help="steps between two lines of the log")
    parser.add_argument("--score", type=int, default=300, help="probes a task to score at the end")
    parser.add_argument("--shards", type=int, default=None, help="use only so many shards")
    parser.add_argument("--hidden", type=int, default=Shape.hidden)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "log.txt")
    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        workers = start_workers(args.data, args.tokenizer, args.seed, Path(folder), args.workers)
        try:
            train_and_write(args, Path(folder), log)
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()


def train_and_write(args: argparse.Namespace, folder: Path, log: Log) -> None:
    from training.export import export
    from training.scores import greedy_scores

    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    marker = Marker(tokenizer)
    feed = Feed(folder, marker, args.batch, args.seed, args.shards)
    heads = max(1, args.hidden // 64)
    shape = Shape(hidden=args.hidden, layers=args.layers, heads=heads, kv_heads=1 if heads % 2 else 2)
    if args.hidden != Shape.hidden:
        shape = Shape(hidden=args.hidden, layers=args.layers, heads=heads, kv_heads=1, inner=args.hidden * 8 // 3)
    trainer = checked_trainer(args, shape, marker, log)
    rows = held_back_rows(args.data, tokenizer, marker, args.batch)
    log(f"held back before training: {held_back_losses(trainer, rows)}")
    run(trainer, feed, rows, args, log)
    log(f"held back: {held_back_losses(trainer, rows)}")
    if trainer.device.type == "cuda":
        log(f"most memory: {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
    model = export(trainer.model, tokenizer, args.out)
    log(f"wrote {sorted(path.name for path in args.out.iterdir())}")
    if args.score:
        scores = greedy_scores(model, trainer.device, tokenizer, args.data, args.score, log)
        (args.out / "scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

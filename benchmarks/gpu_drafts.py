"""Drafts on a GPU: what a step costs that verifies them, and what they save with the bundled model.

    python benchmarks/gpu_drafts.py cost [--shape llama8b] [--rows 1 2 3 5 8 16] [--context 128 4096] [--sequences 1]
    python benchmarks/gpu_drafts.py saved [--only extraction agents ...] [--at-once 1 8 64] [--rounds 3]
    benchmarks/gpu_bench.sh and benchmarks/lay_out.sh say how to run it where sgl cannot be installed

cost: dummy weights; a drafter that always drafts rows - 1 tokens, all of which are computed. It prints milliseconds of
    a
step: on the device (from the first copy to the logits), and of the wall clock, with sampling and the host's work before
the next step. One row is an engine's ordinary step, which runs ahead of the host. saved: as benchmarks/drafts.py, both
engines on the GPU.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

import drafts
from gpu_report import text_table
from gpu_session import where
from gpu_shapes import SHAPES, Shape, shape_of, write_model
from gpu_work import prompts, rested

import sgl
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.sequences.draft_tokens import DraftSource, DraftTokens

STEPS, UNTIMED = 60, 12
COLUMNS = ("sequences", "tokens before", "rows", "device ms", "times one row", "wall ms", "times one row")


class Always:
    """Guesses so many tokens, whatever came before."""

    def __init__(self) -> None:
        self.count, self.draw = 0, random.Random(1)

    def propose(self, seq: Any, op: Any, most: int) -> DraftTokens | None:
        tokens = [self.draw.randrange(300, 1000) for _ in range(min(self.count, most))]
        return DraftTokens(tokens, DraftSource("always")) if tokens else None

    def learn(self, seq: Any, decoding: Any) -> None:
        """Nothing is."""

    def forget(self) -> None:
        """Nothing is kept."""


class Watch:
    """Times the steps of a runner on its device."""

    def __init__(self, runner: Any) -> None:
        self.spans: list[tuple[Any, Any]] = []
        self._forward = runner.forward
        runner.forward = self

    def __call__(self, work: Any) -> Any:
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        logits = self._forward(work)
        ended.record()
        self.spans.append((begun, ended))
        return logits

    def milliseconds(self) -> float:
        """The median of those since it was asked last, without the first ones."""
        self.spans[-1][1].synchronize()  # not the whole device: the engine may be capturing a graph
        found = [begun.elapsed_time(ended) for begun, ended in self.spans[UNTIMED:]]
        self.spans = []
        return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True, dest="kind")
    cost = kinds.add_parser("cost")
    cost.add_argument("--shape", choices=tuple(SHAPES), default="llama8b")
    cost.add_argument("--rows", nargs="*", type=int, default=[1, 2, 3, 5, 8, 16])
    cost.add_argument("--context", nargs="*", type=int, default=[128, 4096])
    cost.add_argument("--sequences", nargs="*", type=int, default=[1])
    cost.add_argument("--weights", default="auto")
    saved = kinds.add_parser("saved")
    saved.add_argument("--only", nargs="*", choices=tuple(drafts.KINDS), default=tuple(drafts.KINDS))
    saved.add_argument("--at-once", nargs="*", type=int, choices=(1, 8, 64), default=(1, 8, 64))
    saved.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(where(), flush=True)
    what_it_costs(args) if args.kind == "cost" else what_it_saves(args)


def what_it_costs(args: argparse.Namespace) -> None:
    shape, found, drafter = shape_of(args.shape), [], Always()
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / shape.name, shape)
        options: dict[str, Any] = {
            "device": "cuda",
            "dtype": "bfloat16",
            "dummy": True,
            "weights": args.weights,
            "context": shape.context,
        }
        with sgl.Engine(model, speculation={"control": False, "learn": False}, **options) as engine:
            rested(engine)
            speculation, watch = engine._core.life.speculation, Watch(engine._core.runner)
            speculation.drafters = [drafter]
            for sequences in args.sequences:
                for context in args.context:
                    one: tuple[float, float] | None = None
                    for drafter.count in [rows - 1 for rows in args.rows]:
                        step_of(engine, shape, watch, sequences, context)  # captures what the next one replays
                        device, wall = step_of(engine, shape, watch, sequences, context)
                        one = one or (device, wall)
                        found.append(
                            (
                                sequences,
                                context,
                                drafter.count + 1,
                                f"{device:.3f}",
                                f"{device / one[0]:.3f}",
                                f"{wall:.3f}",
                                f"{wall / one[1]:.3f}",
                            )
                        )
                        print(*found[-1], flush=True)
    print(text_table(COLUMNS, found))


def step_of(engine: sgl.Engine, shape: Shape, watch: Watch, count: int, context: int) -> tuple[float, float]:
    """Milliseconds of a step on the device, and of the wall clock."""
    handles = []
    for row in prompts(count, context, shape.vocab, 1):
        handles.append(engine.open())
        handles[-1].extend(row)
    for future in [handle.prefill() for handle in handles]:
        future.result(100)
    params = SamplingParams(max_tokens=UNTIMED + STEPS, temperature=0, ignore_eos=True)
    watch.spans, before, started = [], engine.stats(), time.perf_counter()
    futures = [handle.generate(params) for handle in handles]
    for future in futures:
        future.result(100)
    seconds, spent = time.perf_counter() - started, engine.stats() - before
    for handle in handles:
        handle.close()
    return watch.milliseconds(), 1e3 * seconds / spent.steps


def what_it_saves(args: argparse.Namespace) -> None:
    options = {key: value for key, value in drafts.OPTIONS.items() if key != "threads"} | {"device": "cuda"}
    rows: list[tuple[Any, ...]] = []
    with sgl.Engine(**options) as plain:
        rested(plain)
        with sgl.Engine(speculation="auto", **options) as drafting:
            rested(drafting)
            saved(args, plain, drafting, rows)
    print(text_table(drafts.COLUMNS, rows))


def saved(args: argparse.Namespace, plain: sgl.Engine, drafting: sgl.Engine, rows: list[tuple[Any, ...]]) -> None:
    for count in args.at_once:
        for name in args.only:
            rows.append(drafts.compared(drafts.KINDS[name], count, plain, drafting, args.rounds, time.perf_counter))
            print(*rows[-1], sep="  ", flush=True)


if __name__ == "__main__":
    main()

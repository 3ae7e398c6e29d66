"""Several GPUs against one: all-reduce by each algorithm, then a model of Llama-3.1-8B's shape (dummy weights) on one
GPU, over two, and copied.

    python benchmarks/gpu_ranks.py [--cards 2] [--what sums,one,tensor,pipeline,both,replicas,faults] [--shape llama8b]
    [--layers N]
    python benchmarks/gpu_ranks.py --expert-parallel --shape qwen3-30b-a3b [--redundant-experts 8] [--what one,tensor]
    python benchmarks/gpu_ranks.py --shape deepseek-v2-lite --cards 4 --what one,tensor,rows --deep 1 64 256

sums      all-reduce of 8 KB to 64 MB, microseconds alone and in CUDA graphs (gpu_ranks_sums.py)
one, tensor, pipeline, both, replicas: seconds until it is ready; one sequence of 128 + 256 tokens; 256 x (512 + 128) at
          once ("both": stages of two ranks each). Of one and replicas also programs, 256 a GPU in 16 groups: 3,000
          tokens that a group shares and 64 own ones, 32 written, with the share of prompt tokens that was cached
experts   (--expert-parallel) as tensor, but each rank holds whole experts; then experts move by their load, and one
          sequence and the crowd again
rows      as tensor, but that latent attention is shared out by rows (latent_attention="rows"); of a shape that has it
--deep    of each kind also so many sequences at once after 4,096 tokens each: 128 tokens of each, the time of the
          prompts left out
faults    (with tensor) a rank is killed and stopped while 256 sequences are written; seconds until all
          have their error, all ranks have ended, it runs again; and what is left in GPU memory when it is closed

Scripts that run in parallel share GPUs if --option kv_tokens=N leaves room: with the same file as --turn they open at
once and measure one by one.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_shapes import MIXTURES, SHAPES, shape_of, write_model
from gpu_work import PATIENCE, generate, opened, prompts, rested

import sgl
from sgl.runtime import SamplingParams
from sgl.runtime.errors import EngineDied

RUNS = 3
SILENCE = 5.0  # seconds: heartbeat of the engine whose ranks are killed and stopped
GROUPS, SHARED, OWN, WRITTEN = 16, 3000, 64, 32  # of the programs
DEEP, ONWARDS = 4096, 128  # tokens of each sequence, and those that it goes on by
KINDS = ("one", "tensor", "rows", "experts", "pipeline", "both", "replicas")
HERE = Path(__file__).parent


def spread_over(kind: str, cards: int, redundant: int) -> dict[str, Any]:
    """The options of an engine of that kind."""
    found: dict[str, dict[str, Any]] = {
        "one": {"process": True},
        "tensor": {"tensor_parallel": cards},
        "rows": {"tensor_parallel": cards, "latent_attention": "rows"},
        "experts": {"tensor_parallel": cards, "expert_parallel": True, "redundant_experts": redundant},
        "pipeline": {"pipeline_parallel": cards},
        "both": {"pipeline_parallel": 2, "tensor_parallel": cards // 2},
        "replicas": {"replicas": cards},
    }
    return found[kind]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", type=int, default=2)
    parser.add_argument("--what", default="sums,one,tensor,pipeline,replicas,faults")
    parser.add_argument("--shape", choices=(*SHAPES, *MIXTURES), default="llama8b")
    parser.add_argument(
        "--expert-parallel", action="store_true", help="also measure whole experts on ranks, of a mixture"
    )
    parser.add_argument("--redundant-experts", type=int, default=0, help="copies of experts in each layer then")
    parser.add_argument("--layers", type=int)
    parser.add_argument(
        "--deep",
        nargs="*",
        type=int,
        default=[],
        metavar="N",
        help="numbers of sequences that go on after 4,096 tokens each",
    )
    parser.add_argument("--turn", type=Path, help="a file that parallel scripts lock in turn to measure")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of every engine")
    parser.add_argument("--out", type=Path, help="write the figures as JSON here")
    args = parser.parse_args()
    if args.expert_parallel and args.shape not in MIXTURES:
        parser.error(f"--expert-parallel is for a mixture of experts, one of {', '.join(MIXTURES)}")
    return args


def say(text: str) -> None:
    print(text, flush=True)


def sums(cards: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "gpu_ranks_sums.py")]
        started = [subprocess.Popen([*command, str(rank), str(cards), f"{folder}/meeting"]) for rank in range(cards)]
        for process in started:
            process.wait(120)


class Measured:
    """One kind of engine."""

    def __init__(self, args: argparse.Namespace, model: Path, kind: str) -> None:
        self.deep = args.deep
        self.kind, self.cards, self.runs, self.vocab = (
            kind,
            args.cards,
            args.runs,
            shape_of(args.shape, args.layers).vocab,
        )
        chosen: dict[str, Any] = {"device": "cuda", "dummy": True, "context": 8192, "max_running": 256}
        for pair in args.option:
            name, _, value = pair.partition("=")
            chosen[name] = json.loads(value)
        chosen |= spread_over(kind, args.cards, args.redundant_experts)
        if kind == "tensor" and "faults" in args.what:
            chosen["heartbeat"] = SILENCE
        began = time.perf_counter()
        self.engine = sgl.Engine(model, **chosen)
        self.figures: dict[str, Any] = {"ready_s": time.perf_counter() - began}
        self.say(
            "ready",
            f"{self.figures['ready_s']:.1f} s, {self.engine.info()['kv_tokens']} tokens of KV; "
            f"{rounded(self.engine.info()['startup'])}",
        )

    def say(self, what: str, text: str) -> None:
        say(f"{self.kind:9} {what:18} {text}")

    def run(self) -> dict[str, Any]:
        rested(self.engine)
        self.rate("one sequence", 1, 128, 256)
        self.rate("crowd", 256, 512, 128)
        for count in self.deep:
            self.after_prompts(count)
        if self.kind in ("one", "replicas"):
            self.shared()
        if self.kind == "experts":
            self.rebalanced()
        return self.figures

    def rate(self, what: str, count: int, length: int, tokens: int, shared: int = 0) -> None:
        self.settled(lambda seed: generate(self.engine, prompts(count, length, self.vocab, seed, shared), tokens).rate)
        found = sorted(
            generate(self.engine, prompts(count, length, self.vocab, seed, shared), tokens).rate
            for seed in range(self.runs)
        )
        self.figures[what] = found
        self.say(what, " ".join(f"{each:.0f}" for each in found) + " tokens/s")

    def after_prompts(self, count: int) -> None:
        """The same sequences go on and on: graphs are captured in the first two turns."""
        self.engine.flush_cache()
        with opened(self.engine, prompts(count, DEEP, self.vocab, 7)) as sequences:
            for tokens in (16, ONWARDS):
                onwards(sequences, tokens)
            found = sorted(count * ONWARDS / onwards(sequences, ONWARDS) for _ in range(self.runs))
        self.figures[f"{count} after {DEEP}"] = found
        self.say(
            f"{count} after {DEEP}",
            " ".join(f"{each:.0f}" for each in found)
            + f" tokens/s; {1000 * count / found[len(found) // 2]:.2f} ms a step",
        )

    def settled(self, work: Callable[[int], float]) -> None:
        """Until it gets no faster: graphs are captured after some steps without
        them, kernels of rare sizes are compiled.
        """
        before = work(1000)
        for seed in range(1001, 1006):
            if (rate := work(seed)) < 1.02 * before:
                return
            before = rate

    def rebalanced(self) -> None:
        """Random tokens of random weights choose some experts far more often than others."""
        done = self.engine.rebalance_experts()
        self.figures["rebalanced"] = done
        size, share = (
            f"{done['experts']} experts, {done['bytes'] / 1e9:.2f} GB in {done['seconds']:.2f} s between steps",
            f"{done['balance_before']:.3f}",
        )
        self.say("rebalanced", f"{size}; balance {share}, {done['balance_expected']:.3f} by the same rows")
        self.rate("one, balanced", 1, 128, 256)
        before = self.engine.stats()
        self.rate("crowd, balanced", 256, 512, 128)
        self.say("rebalanced", f"balance of the rows since {(self.engine.stats() - before).rank_balance:.3f}")

    def shared(self) -> None:
        """Programs in a random order, so that those of a group come apart."""
        self.settled(lambda seed: self.programs(64 * self.cards, seed)[0])
        found = [self.programs(256 * self.cards, seed) for seed in range(self.runs)]
        rates = sorted(rate for rate, _ in found)
        self.figures["programs"], self.figures["cached"] = rates, [cached for _, cached in found]
        self.say(
            "programs",
            " ".join(f"{rate:.1f}" for rate in rates)
            + " a second; cached "
            + ", ".join(f"{100 * cached:.2f} %" for _, cached in found),
        )

    def programs(self, count: int, seed: int) -> tuple[float, float]:
        """So many a second, and the share of their tokens that was cached."""
        rows = [row for group in range(GROUPS) for row in grouped(count // GROUPS, self.vocab, 100 * seed + group)]
        random.Random(seed).shuffle(rows)
        before = self.engine.stats()
        run = generate(self.engine, rows, WRITTEN)
        return count / run.seconds, (self.engine.stats() - before).cached_tokens / (count * (SHARED + OWN))

    def faults(self) -> None:
        for number in (signal.SIGKILL, signal.SIGSTOP):
            self.fault(number)

    def fault(self, number: signal.Signals) -> None:
        engine = self.engine
        pids = engine.info()["rank_pids"]
        rows = prompts(256, 128, self.vocab, 5)
        with opened(engine, rows) as sequences:
            endless = [each.generate(SamplingParams(max_tokens=4000, ignore_eos=True)) for each in sequences]
            time.sleep(2)
            began = time.perf_counter()
            os.kill(pids[1], number)
            errors = [future.exception(60) for future in endless]
            failed = time.perf_counter() - began
        died = sum(isinstance(error, EngineDied) for error in errors)
        self.say(number.name, f"{died} of {len(errors)} failed after {failed:.2f} s: {str(errors[0])[:150]}")
        ended = until(lambda: not any(os.path.exists(f"/proc/{pid}") and "Z" not in status(pid) for pid in pids))
        self.say(number.name, f"all ended {ended - began:.2f} s after")
        again = until(lambda: engine.info()["rank_pids"] != pids and engine._core.up)
        made = engine.generate("abc", max_tokens=4, temperature=0).token_ids
        self.say(number.name, f"runs again {again - began:.1f} s after, {len(made)} tokens")


def onwards(sequences: list[Any], tokens: int) -> float:
    """Seconds until each has so many more."""
    began = time.perf_counter()
    for future in [
        each.generate(SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)) for each in sequences
    ]:
        future.result(PATIENCE)
    return time.perf_counter() - began


def status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def until(holds: Any, seconds: float = 90.0) -> float:
    last = time.perf_counter() + seconds
    while not holds():
        if time.perf_counter() > last:
            raise TimeoutError
        time.sleep(0.01)
    return time.perf_counter()


def grouped(count: int, vocab: int, seed: int) -> list[Any]:
    return prompts(count, OWN, vocab, seed, SHARED)


def used_memory() -> str:
    """Of the cards, as their driver tells it."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
    return ", ".join(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")).strip(
        ", "
    )


@contextlib.contextmanager
def turn(path: Path | None) -> Iterator[None]:
    if path is None:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in seconds.items()}


def main() -> None:
    args = options()
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    say(f"{torch.cuda.device_count()} x {card}, torch {torch.__version__}")
    what, figures = args.what.split(",") + ["experts"] * args.expert_parallel, {}
    if "sums" in what:
        sums(args.cards)
    with tempfile.TemporaryDirectory() as folder:
        shape = shape_of(args.shape, args.layers)
        model = write_model(Path(folder) / shape.name, shape)
        for kind in [kind for kind in KINDS if kind in what]:
            try:
                figures[kind] = measured(args, model, kind, "faults" in what)
            except Exception:  # the other kinds are measured
                traceback.print_exc()
            if args.out:
                args.out.write_text(json.dumps(figures, indent=1))


def measured(args: argparse.Namespace, model: Path, kind: str, faults: bool) -> dict[str, Any]:
    opened = Measured(args, model, kind)
    try:
        with turn(args.turn):
            opened.run()
            if kind == "tensor" and faults:
                opened.faults()
    finally:
        opened.engine.close()
    if kind == "tensor" and faults:
        opened.say("closed", f"memory in use on the cards: {used_memory()}")
    return opened.figures


if __name__ == "__main__":
    main()

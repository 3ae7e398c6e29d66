"""Several cards beside one: sums over ranks by each way, then a model of Llama-3.1-8B's shape (dummy weights) on one card, over two, and copied.

    python benchmarks/gpu_ranks.py [--cards 2] [--what sums,one,tensor,pipeline,replicas,faults] [--shape llama8b] [--layers N]
    python benchmarks/gpu_ranks.py --expert-parallel --shape qwen3-30b-a3b [--redundant-experts 8] [--what one,tensor]

sums      all-reduce of 8 KB to 64 MB, microseconds alone and in CUDA graphs (gpu_ranks_sums.py)
one, tensor, pipeline, replicas: seconds until it is ready; one sequence of 128 + 256 tokens; 256 x (512 + 128) at once; and 256 programs of
          3,000 shared tokens and 64 own ones, 32 written, with the share of prompt tokens that was cached
experts   (--expert-parallel) as tensor, but that each rank holds whole experts; then experts move by what was chosen, and one sequence and the crowd again
faults    of two ranks: a follower is killed and stopped while text is written; seconds until somebody is told, all have ended, it runs again
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from gpu_shapes import MIXTURES, SHAPES, shape_of, write_model
from gpu_work import generate, prompts

import sgl
from sgl.runtime import SamplingParams
from sgl.runtime.errors import EngineDied

RUNS = 3
SILENCE = 5.0  # seconds: heartbeat of the engine whose ranks are killed and stopped
KINDS = {"one": {}, "tensor": "tensor_parallel", "experts": "tensor_parallel", "pipeline": "pipeline_parallel", "replicas": "replicas"}
HERE = Path(__file__).parent


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", type=int, default=2)
    parser.add_argument("--what", default="sums,one,tensor,pipeline,replicas,faults")
    parser.add_argument("--shape", choices=(*SHAPES, *MIXTURES), default="llama8b")
    parser.add_argument("--expert-parallel", action="store_true", help="measure whole experts on ranks beside the others, of a mixture")
    parser.add_argument("--redundant-experts", type=int, default=0, help="copies of experts in each layer then")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--together", action="store_true", help="open all engines at the same time, for which --option kv_tokens=N leaves room, and measure one by one")
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
        self.kind, self.runs, self.vocab = kind, args.runs, shape_of(args.shape, args.layers).vocab
        chosen: dict[str, Any] = {"device": "cuda", "dummy": True, "context": 8192, "max_running": 256}
        for pair in args.option:
            name, _, value = pair.partition("=")
            chosen[name] = json.loads(value)
        chosen |= {KINDS[kind]: args.cards} if kind != "one" else {"process": True}
        if kind == "experts":
            chosen |= {"expert_parallel": True, "redundant_experts": args.redundant_experts}
        if kind == "tensor" and "faults" in args.what:
            chosen["heartbeat"] = SILENCE
        began = time.perf_counter()
        self.engine = sgl.Engine(model, **chosen)
        self.figures: dict[str, Any] = {"ready_s": time.perf_counter() - began}
        self.say("ready", f"{self.figures['ready_s']:.1f} s, {self.engine.info()['kv_tokens']} tokens of KV; {rounded(self.engine.info()['startup'])}")

    def say(self, what: str, text: str) -> None:
        say(f"{self.kind:9} {what:18} {text}")

    def run(self) -> dict[str, Any]:
        self.rate("one sequence", 1, 128, 256)
        self.rate("crowd", 256, 512, 128)
        if self.kind in ("one", "replicas"):
            self.shared()
        if self.kind == "experts":
            self.rebalanced()
        return self.figures

    def rate(self, what: str, count: int, length: int, tokens: int, shared: int = 0) -> None:
        for seed in range(2):  # graphs are captured after some steps without them
            generate(self.engine, prompts(count, length if seed else 16, self.vocab, 1000 + seed, shared), min(tokens, 64))
        found = sorted(generate(self.engine, prompts(count, length, self.vocab, seed, shared), tokens).rate for seed in range(self.runs))
        self.figures[what] = found
        self.say(what, " ".join(f"{each:.0f}" for each in found) + " tokens/s")

    def rebalanced(self) -> None:
        """Random tokens of random weights choose some experts far more often than others."""
        done = self.engine.rebalance_experts()
        self.figures["rebalanced"] = done
        size, share = f"{done['experts']} experts, {done['bytes'] / 1e9:.2f} GB in {done['seconds']:.2f} s between steps", f"{done['balance_before']:.3f}"
        self.say("rebalanced", f"{size}; balance {share}, {done['balance_expected']:.3f} by the same rows")
        self.rate("one, balanced", 1, 128, 256)
        before = self.engine.stats()
        self.rate("crowd, balanced", 256, 512, 128)
        self.say("rebalanced", f"balance of the rows since {(self.engine.stats() - before).rank_balance:.3f}")

    def shared(self) -> None:
        self.rate("shared prefix", 256, 64, 32, 3000)
        before = self.engine.stats()
        generate(self.engine, prompts(256, 64, self.vocab, 77, 3000), 32)
        after = self.engine.stats()
        cached = (after.cached_tokens - before.cached_tokens) / (256 * 3064)
        self.figures["cached"] = cached
        self.say("shared prefix", f"{100 * cached:.1f} % of the prompts' tokens cached")

    def faults(self) -> None:
        for number in (signal.SIGKILL, signal.SIGSTOP):
            self.fault(number)

    def fault(self, number: signal.Signals) -> None:
        engine = self.engine
        pids = engine.info()["rank_pids"]
        sequence = engine.open()
        sequence.extend([5, 6, 7])
        endless = sequence.generate(SamplingParams(max_tokens=8000, ignore_eos=True))
        time.sleep(0.5)
        began = time.perf_counter()
        os.kill(pids[1], number)
        try:
            endless.result(60)
            self.say(number.name, "nobody was told")
        except EngineDied as error:
            told = time.perf_counter() - began
            self.say(number.name, f"told after {told:.2f} s: {str(error)[:150]}")
        ended = until(lambda: not any(os.path.exists(f"/proc/{pid}") and "Z" not in status(pid) for pid in pids))
        self.say(number.name, f"all ended {ended - began:.2f} s after")
        again = until(lambda: engine.info()["rank_pids"] != pids and engine._core.up)
        made = engine.generate("abc", max_tokens=4, temperature=0).token_ids
        self.say(number.name, f"runs again {again - began:.1f} s after, {len(made)} tokens")


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


def rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in seconds.items()}


def main() -> None:
    args = options()
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no card"
    say(f"{torch.cuda.device_count()} x {card}, torch {torch.__version__}")
    what, figures = args.what.split(",") + ["experts"] * args.expert_parallel, {}
    if "sums" in what:
        sums(args.cards)
    with tempfile.TemporaryDirectory() as folder:
        shape = shape_of(args.shape, args.layers)
        model = write_model(Path(folder) / shape.name, shape)
        kinds = [kind for kind in KINDS if kind in what]
        together = [kinds] if args.together else [[kind] for kind in kinds]
        for group in together:
            with ThreadPoolExecutor(len(group)) as pool:
                opened = list(pool.map(lambda kind: Measured(args, model, kind), group))
            for measured in opened:
                figures[measured.kind] = measured.run()
                if measured.kind == "tensor" and "faults" in what:
                    measured.faults()
                measured.engine.close()
                if args.out:
                    args.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()

"""How fast is the bundled model here, against transformers' generate with the same weights?

Prints ratios of one run: one sequence; 32 programs that share a prefix (against transformers one by one and
as one padded batch); the share of a step that is spent outside the model; start-up times.

    python benchmarks/speed.py [--tokens 128] [--model DIR]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import torch
from bench_results import best_of, keep, table

import sgl
from sgl.runtime import SamplingParams

PREFIX = (
    "You are the assistant of a travel agency. You answer in one short sentence and never invent a price. "
    "The agency books flights, hotels, trains and rental cars in Europe. Refunds take ten working days. "
    "Children under six travel free on trains. Pets are welcome in most hotels, but not on night trains. "
) * 4
PROGRAMS = 32


@sgl.function
def answer(s, question, tokens):
    s += sgl.system(PREFIX)
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=tokens, temperature=0, ignore_eos=True))


def questions() -> list[str]:
    return [f"Question {i}: may I take {i + 1} bags and a dog to city number {7 * i % 30}?" for i in range(PROGRAMS)]


def prompt(question: str) -> str:
    return f"<|system|>{PREFIX}<|end|><|user|>{question}<|end|><|assistant|>"


class Peer:
    """transformers with the same weights, in the dtype that is faster for it here."""

    def __init__(self, path: str, tokens: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokens = tokens
        self.tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
        models = {
            d: AutoModelForCausalLM.from_pretrained(path, dtype=d).eval() for d in (torch.float32, torch.bfloat16)
        }
        times = {d: best_of(1, lambda m=m: self.generate([prompt("Hello?")], m)) for d, m in models.items()}
        self.dtype = min(times, key=lambda d: times[d])
        self.model = models[self.dtype]

    @torch.inference_mode()
    def generate(self, prompts: list[str], model=None) -> torch.Tensor:
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
        return (model or self.model).generate(
            **inputs, do_sample=False, min_new_tokens=self.tokens, max_new_tokens=self.tokens, pad_token_id=0
        )


def one_sequence(engine: sgl.Engine, tokens: int) -> None:
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    engine.flush_cache()
    done = engine.generate(prompt("Hello?"), params)
    assert done.completion_tokens == tokens


def many_programs(engine: sgl.Engine, tokens: int) -> None:
    engine.flush_cache()
    states = answer.run_batch([{"question": q, "tokens": tokens} for q in questions()], backend=engine)
    assert all(s.get_meta_info("answer")["completion_tokens"] == tokens for s in states)


def share_outside(engine: sgl.Engine, tokens: int) -> float:
    before = engine.stats()
    many_programs(engine, tokens)
    spent = engine.stats() - before
    return 1 - spent.model_seconds / spent.step_seconds


def startup() -> tuple[float, float]:
    """Seconds of `import sgl` and of `sgl.Engine()` in a new process, best of three."""
    code = (
        "import time; a = time.perf_counter(); import sgl; b = time.perf_counter(); sgl.Engine(); "
        "c = time.perf_counter(); print(b - a, c - b)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(3)
    ]
    return min(float(r[0]) for r in runs), min(float(r[1]) for r in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--model", default=None, help="a model directory; the bundled model if not given")
    args = parser.parse_args()
    n = args.tokens
    with sgl.Engine(args.model) as engine:
        info = engine.info()
        one = n / best_of(3, lambda: one_sequence(engine, n))
        many = PROGRAMS * n / best_of(3, lambda: many_programs(engine, n))
        outside = share_outside(engine, n)
        path = engine.model_path
    peer = Peer(path, n)
    peer_one = n / best_of(3, lambda: peer.generate([prompt("Hello?")]))
    prompts = [prompt(q) for q in questions()]
    started = time.perf_counter()
    for text in prompts:
        peer.generate([text])
    peer_serial = PROGRAMS * n / (time.perf_counter() - started)
    peer_batch = PROGRAMS * n / best_of(1, lambda: peer.generate(prompts))
    imported, ready = startup()
    print(
        f"sgl-nano, {info['dtype']}, {info['threads']} threads; transformers "
        f"{str(peer.dtype).removeprefix('torch.')}; {n} tokens each\n"
    )
    table(
        ("tokens/s", "sgl", "transformers", "ratio"),
        [
            ("one sequence", one, peer_one, one / peer_one),
            (f"{PROGRAMS} programs, against one by one", many, peer_serial, many / peer_serial),
            (f"{PROGRAMS} programs, against one padded batch", many, peer_batch, many / peer_batch),
        ],
    )
    print(f"\nshare of a step outside the model at {PROGRAMS} sequences: {outside:.1%}")
    print(f"import sgl: {imported * 1000:.0f} ms; sgl.Engine() ready in {ready:.2f} s")
    keep(
        "speed",
        {
            "dtype": info["dtype"],
            "threads": info["threads"],
            "peer_dtype": str(peer.dtype),
            "tokens": n,
            "one": {"sgl": one, "transformers": peer_one},
            "programs": {"sgl": many, "one_by_one": peer_serial, "batch": peer_batch},
            "share_outside_model": outside,
            "import_s": imported,
            "ready_s": ready,
        },
    )


if __name__ == "__main__":
    main()

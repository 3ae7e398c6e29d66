"""Plain decoding on this CPU: the bundled model, or a larger one, in sgl against llama.cpp with the same weights.

    python benchmarks/cpu_speed.py [--peers PYTHON] [--tokens 128] [--kinds float32 bfloat16 int8 int4] [--model 0.3b |
    moe] [--prompt 512]

Greedy, every sequence the same lengths, warm, the two engines in turn. Times go from the call to the last token, the
prompts of 32 tokens included, nothing cached; with --prompt 512 --tokens 2 they are mostly those of prompts. llama.cpp
runs by its own `llama_decode` with all sequences in one step
(llama_cpp_peer.py, in the environment of PYTHON: pip install llama-cpp-python gguf); the column "decode alone" leaves
out the
Python around it and its prompts, so it is what a program in C++ would see at best; "equal tokens" is the share before
the
first difference of a sequence (other dtypes are rounded in other places and part early). llama.cpp in float16 is slower
than in bfloat16 here. Without a peer only sgl is measured, and nothing is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bench_results import keep, keep_text, table
from benchmarks.cpu_models import SHAPES, random_model
from sgl.runtime import Engine, SamplingParams

HERE = Path(__file__).parent
INSTALL = "llama.cpp is not in {python}: pip install llama-cpp-python gguf there, or name another with --peers PYTHON"
KV_TOKENS = 20_000
SETTLE = 0.3  # seconds after which idle threads of the other engine no longer spin
HEAD = ("weights", "sequences", "sgl", "llama.cpp", "ratio", "its decode alone", "ratio", "equal tokens")


@dataclass(frozen=True)
class Kind:
    """Weights as both engines know them. kv: llama.cpp's keys and values; ours are in the model's dtype."""

    name: str
    options: dict[str, Any]
    peer: str
    kv: str = "f16"


KINDS = (
    Kind("float32", {"dtype": "float32"}, "f32", "f32"),
    Kind("bfloat16", {"dtype": "bfloat16"}, "bf16"),
    Kind("int8", {"dtype": "bfloat16", "weights": "int8"}, "q8_0"),
    Kind("int4", {"dtype": "bfloat16", "weights": "int4"}, "q4_0"),
)


@dataclass
class Rates:
    """Tokens/s of every run, and the tokens of the last one."""

    whole: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)


class Peer:
    """llama_cpp_peer.py in another Python."""

    def __init__(self, python: str) -> None:
        command = [python, str(HERE / "llama_cpp_peer.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._answer()

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self.process.stdin
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"llama_cpp_peer.py ended with code {self.process.wait()}; its message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def prompts(count: int, size: int = 32) -> list[list[int]]:
    """Ends of real prompts, `size` tokens each; a shorter one is followed by the next."""
    from benchmarks.fp8_loss import texts

    found: list[list[int]] = []
    pending: list[int] = []
    for text in texts():
        pending += text.ids[: text.answer].tolist()
        if len(pending) >= size:
            found.append([0, *pending[len(pending) - size + 1 :]])
            pending = []
    if len(found) < count:
        raise SystemExit(
            f"{count} prompts of {size} tokens; there is text for {len(found)}: take fewer --sequences or a shorter "
            "--prompt"
        )
    return found[:count]


def ours(engine: Any, ids: list[list[int]], tokens: int, rates: Rates) -> None:
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    engine.flush_cache()
    sequences = [engine.open() for _ in ids]
    started = time.perf_counter()
    for sequence, prompt in zip(sequences, ids, strict=True):
        sequence.extend(prompt)
    done = [future.result() for future in [sequence.generate(params) for sequence in sequences]]
    rates.whole.append(len(ids) * tokens / (time.perf_counter() - started))
    rates.tokens = [list(map(int, generation.token_ids)) for generation in done]


def theirs(peer: Peer, ids: list[list[int]], tokens: int, rates: Rates) -> None:
    answer = peer.ask(prompts=ids, tokens=tokens)
    rates.whole.append(len(ids) * tokens / answer["seconds"])
    rates.alone.append(len(ids) * (tokens - 1) / answer["inside_decode_seconds"])
    rates.tokens = answer["tokens"]


def measure(engine: Any, peer: Peer | None, ids: list[list[int]], tokens: int, rounds: int) -> tuple[Rates, Rates]:
    """Runs in turn, the first of each not counted."""
    own, other = Rates(), Rates()
    ours(engine, ids, tokens // 4, Rates())
    if peer:
        peer.ask(prompts=ids, tokens=tokens // 4)
    for _ in range(rounds):
        time.sleep(SETTLE)
        ours(engine, ids, tokens, own)
        if peer:
            time.sleep(SETTLE)
            theirs(peer, ids, tokens, other)
    return own, other


def equal_share(a: list[list[int]], b: list[list[int]]) -> float:
    """Share of the tokens that come before the first difference of their sequence."""
    total = sum(map(len, a))
    same = 0
    for left, right in zip(a, b, strict=True):
        same += next((i for i, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1]), len(left))
    return same / total


@contextmanager
def gguf_file(python: str, model: str, kind: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / f"{kind}.gguf")
        subprocess.run([python, str(HERE / "gguf_nano.py"), model, out, "--kind", kind], check=True)
        yield out


def run_kind(kind: Kind, asked: argparse.Namespace, peer: Peer | None) -> list[dict[str, Any]]:
    found = []
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(Engine(asked.path, **kind.options, threads=asked.threads, kv_tokens=KV_TOKENS))
        file = stack.enter_context(gguf_file(asked.peers, engine.model_path, kind.peer)) if peer else None
        for count in asked.sequences:
            ids = prompts(count, asked.prompt)
            if peer:
                peer.ask(
                    load=file, sequences=count, context=asked.prompt + asked.tokens, threads=asked.threads, kv=kind.kv
                )
            own, other = measure(engine, peer, ids, asked.tokens, asked.rounds)
            found.append(figures(kind, count, own, other))
            print(row(found[-1]), file=sys.stderr)
    return found


def figures(kind: Kind, count: int, own: Rates, other: Rates) -> dict[str, Any]:
    found = {"weights": kind.name, "sequences": count, "sgl": max(own.whole), "sgl_runs": own.whole}
    if other.whole:
        found |= {
            "llama_cpp": max(other.whole),
            "llama_cpp_runs": other.whole,
            "llama_cpp_decode_alone": max(other.alone),
            "equal_tokens": equal_share(own.tokens, other.tokens),
        }
    return found


def row(found: dict[str, Any]) -> tuple[Any, ...]:
    first = (found["weights"], found["sequences"], round(found["sgl"]))
    if "llama_cpp" not in found:
        return (*first, *["-"] * 5)
    whole, alone = found["llama_cpp"], found["llama_cpp_decode_alone"]
    rates = [round(whole), f"{found['sgl'] / whole:.2f}", round(alone), f"{found['sgl'] / alone:.2f}"]
    return (*first, *rates, f"{found['equal_tokens']:.0%}" if found["weights"] == "float32" else "-")


def report(found: list[dict[str, Any]], head: str) -> str:
    lines = io.StringIO()
    with contextlib.redirect_stdout(lines):
        print(head, "\n")
        table(HEAD, [row(one) for one in found])
    return lines.getvalue()


def has_peer(python: str) -> bool:
    return not subprocess.run([python, "-c", "import llama_cpp, gguf"], capture_output=True).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--peers", default=sys.executable, help="Python of an environment with llama-cpp-python and gguf"
    )
    parser.add_argument("--tokens", type=int, default=128, help="generated by each sequence")
    parser.add_argument(
        "--prompt", type=int, default=32, help="tokens of each prompt; llama.cpp takes 2,048 of all sequences at once"
    )
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument(
        "--kinds", nargs="+", default=[kind.name for kind in KINDS], choices=[kind.name for kind in KINDS]
    )
    parser.add_argument("--model", choices=["nano", *SHAPES], default="nano")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--keep", action="store_true", help="write results/cpu_speed.json and .txt, or cpu_speed_0.3b, cpu_speed_moe"
    )
    asked = parser.parse_args()
    if not has_peer(asked.peers):
        print(INSTALL.format(python=asked.peers))
    peer = Peer(asked.peers) if has_peer(asked.peers) else None
    with random_model(asked.model) if asked.model != "nano" else contextlib.nullcontext() as asked.path:
        found = [one for kind in KINDS if kind.name in asked.kinds for one in run_kind(kind, asked, peer)]
    about = peer.about if peer else {}
    model = "sgl-nano" if asked.model == "nano" else SHAPES[asked.model][0]
    head = (
        f"tokens/s of {model}, {asked.tokens} tokens a sequence after {asked.prompt}, {asked.threads} threads, "
        f"best of {asked.rounds} runs"
    )
    text = report(found, head)
    print(text)
    if peer:
        peer.close()
    if peer and asked.keep:
        about = {
            "threads": asked.threads,
            "tokens": asked.tokens,
            "prompt": asked.prompt,
            "rounds": asked.rounds,
            "llama_cpp": about,
        }
        name = "cpu_speed" if asked.model == "nano" else f"cpu_speed_{asked.model}"
        keep(name, {**about, "rates": found})
        keep_text(name, f"llama.cpp: {json.dumps(about['llama_cpp'])}\n\n{text}")


if __name__ == "__main__":
    main()

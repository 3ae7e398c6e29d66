"""Prepares training data: mixes the tasks, tokenises, packs rows and writes shards.

    python -m training.prepare --data ../shared/data --out /tmp/shards --shards 4

A shard is a .npy file of uint16 [rows, 2048].  Shard number i depends on the seed and i alone, so that
any number of processes may write them while training already reads the first.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

from sgl.runtime.nano.nano_prompts import START, Message, render
from training.dialogues import Dialogues
from training.labels import Labels
from training.manners import Manners
from training.notes import Notes
from training.packing import ROW, Tokens, pack
from training.sums import single_steps, word_problem
from training.synthetic import Documents, load_catalogue
from training.tokenizer import token_id
from training.tooluse import Agents
from training.utterances import Utterances
from training.values import load_pools, rows

SHARD_TOKENS = 1 << 20
BATCH = 64
AHEAD = 40

MIXTURE = {
    "state": 0.33,
    "labels": 0.20,
    "documents": 0.19,
    "agents": 0.10,
    "utterances": 0.08,
    "tool_use": 0.03,
    "problems": 0.025,
    "manners": 0.02,
    "notes": 0.02,
    "chat": 0.005,
}
"""Share of the tokens that each source gives."""


class Sources:
    """All sources of conversations by name, drawing from one seeded generator."""

    def __init__(self, data: Path, seed: int) -> None:
        self.rng = Random(seed)
        pools, catalogue = load_pools(data), load_catalogue()
        dialogues = Dialogues(self.rng, data, pools)
        self.problems = list(rows(data / "gsm8k-train.jsonl.gz"))
        self.makers: dict[str, Callable[[], list[Message]]] = {
            "state": dialogues.messages,
            "tool_use": dialogues.tool_use,
            "chat": dialogues.chat,
            "documents": Documents(self.rng, pools, catalogue).messages,
            "labels": Labels(self.rng, pools).messages,
            "notes": Notes(self.rng, pools).messages,
            "utterances": Utterances(self.rng, data, pools).messages,
            "agents": Agents(self.rng, pools, catalogue).messages,
            "manners": Manners(self.rng, pools, catalogue).messages,
            "problems": self.problem,
        }

    def conversation(self, name: str) -> list[Message]:
        return self.makers[name]()

    def problem(self) -> list[Message]:
        """A word problem with its calculations, or one line of a solution."""
        row = self.rng.choice(self.problems)
        steps = list(single_steps(row))
        if steps and self.rng.random() < 0.75:
            return self.rng.choice(steps)
        return word_problem(row) or self.problem()

    def restart(self, seed: str) -> None:
        self.rng.seed(seed)


@dataclass
class ShardMaker:
    """Makes shards by number; loads the data once."""

    data: Path
    tokenizer_path: Path
    seed: int = 0
    shard_tokens: int = SHARD_TOKENS
    sources: Sources = field(init=False)
    tokenizer: Tokenizer = field(init=False)

    def __post_init__(self) -> None:
        self.sources = Sources(self.data, self.seed)
        self.tokenizer = Tokenizer.from_file(str(self.tokenizer_path))

    def shard(self, number: int) -> Tokens:
        """Rows uint16 [n, 2048] of the mixture, in random order."""
        self.sources.restart(f"{self.seed}/{number}")
        documents = [tokens for name in MIXTURE for tokens in self._documents(name)]
        self.sources.rng.shuffle(documents)
        packed = pack(documents, token_id(self.tokenizer, START))
        return packed[np.random.default_rng([self.seed, number]).permutation(len(packed))]

    def _documents(self, name: str) -> Iterator[list[int]]:
        wanted = int(self.shard_tokens * MIXTURE[name])
        while wanted > 0:
            texts = [render(self.sources.conversation(name)) for _ in range(BATCH)]
            for encoding in self.tokenizer.encode_batch(texts, add_special_tokens=False):
                yield encoding.ids
                wanted -= len(encoding.ids) + 1

    def write(self, number: int, out: Path) -> Path:
        """Write a shard under its final name at once, so that readers never see half a file."""
        path = out / f"shard-{number:05d}.npy"
        partial = out / f".shard-{number:05d}.part"
        with partial.open("wb") as file:
            np.save(file, self.shard(number))
        return partial.rename(path)


def write_ahead(maker: ShardMaker, out: Path, first: int, step: int) -> None:
    """Write the shards first, first + step, ... until the parent process is gone.

    Waits while AHEAD shards lie unread: a reader removes what it has read.
    """
    parent = os.getppid()
    for number in count(first, step):
        while sum(1 for _ in out.glob("shard-*.npy")) >= AHEAD:
            time.sleep(0.2)
            if os.getppid() != parent:
                return
        maker.write(number, out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write shards of training data.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tokenizer", type=Path, default=Path("runtime/nano/tokenizer.json"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--endless", action="store_true", help="write on, in step with a reader")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    args.out.mkdir(parents=True, exist_ok=True)
    maker = ShardMaker(args.data, args.tokenizer, args.seed)
    if args.endless:
        write_ahead(maker, args.out, args.first, args.step)
        return
    for number in range(args.first, args.first + args.shards * args.step, args.step):
        begun = time.perf_counter()
        path = maker.write(number, args.out)
        tokens = np.load(path, mmap_mode="r").shape[0] * ROW
        print(f"{path}: {tokens} tokens, {tokens / (time.perf_counter() - begun):.0f} a second", flush=True)


if __name__ == "__main__":
    main()

"""Feeds training with rows: worker processes write shards, a thread turns them into batches."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from sgl.runtime.nano.nano_prompts import END, ROLES, START
from training.packing import Tokens, answer_mask, document_numbers
from training.tokenizer import token_id

MIXED_SHARDS = 6
"""Shards that must be there before the first batch, so that early batches are mixed well."""


@dataclass(frozen=True)
class Rows:
    """Rows of tokens int32 [B, T], which of them to learn bool [B, T], their documents int32 [B, T]."""

    tokens: NDArray[np.int32]
    answers: NDArray[np.bool_]
    documents: NDArray[np.int32]


class Marker:
    """Adds answers and documents to packed rows."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.start = token_id(tokenizer, START)
        self.end = token_id(tokenizer, END)
        self.roles = [token_id(tokenizer, f"<|{role}|>") for role in ROLES]
        self.assistant = token_id(tokenizer, "<|assistant|>")

    def __call__(self, rows: Tokens) -> Rows:
        answers = answer_mask(rows, self.roles, self.assistant, self.end)
        return Rows(rows.astype(np.int32), answers, document_numbers(rows, self.start))


def start_workers(data: Path, tokenizer: Path, seed: int, out: Path, workers: int) -> list[subprocess.Popen[bytes]]:
    """Processes that write shards into `out` without end; they stop with this process."""
    common = [
        "--data",
        data,
        "--tokenizer",
        tokenizer,
        "--seed",
        seed,
        "--out",
        out,
        "--endless",
        "--step",
        workers,
    ]
    command = [sys.executable, "-m", "training.prepare", *map(str, common)]
    return [subprocess.Popen([*command, "--first", str(first)]) for first in range(workers)]


class Feed:
    """Batches of rows from a folder of shards that is still being filled.

    Fresh rows come first; when training is faster than the workers, rows seen before are drawn again.
    """

    def __init__(self, folder: Path, marker: Marker, batch: int, seed: int, most_shards: int | None = None) -> None:
        self.folder, self.marker, self.batch = folder, marker, batch
        self.most_shards = most_shards
        self.rng = np.random.default_rng(seed)
        self.pool: list[Tokens] = []
        self.fresh: list[tuple[int, int]] = []
        self.read: set[str] = set()
        self.rows_used = 0
        self.enough = 0
        self.ready: queue.Queue[Rows] = queue.Queue(maxsize=12)
        threading.Thread(target=self._fill, daemon=True).start()

    def next(self) -> Rows:
        return self.ready.get(timeout=300)

    @property
    def passes(self) -> float:
        """How often the average row was used so far."""
        return self.rows_used / max(1, sum(map(len, self.pool)))

    def _fill(self) -> None:
        while len(self.pool) < min(MIXED_SHARDS, self.most_shards or MIXED_SHARDS):
            self._take_new_shards()
            time.sleep(0.1)
        self.enough = len(self.fresh)
        while True:
            if len(self.fresh) < self.enough:
                self._take_new_shards()
            if len(self.fresh) < self.batch:
                self._renew()
            chosen, self.fresh = self.fresh[-self.batch :], self.fresh[: -self.batch]
            self.rows_used += len(chosen)
            self.ready.put(self.marker(np.stack([self.pool[shard][row] for shard, row in chosen])))

    def _take_new_shards(self) -> None:
        found = [p for p in sorted(self.folder.glob("shard-*.npy")) if p.name not in self.read]
        for path in found[: None if self.most_shards is None else self.most_shards - len(self.pool)]:
            self.read.add(path.name)
            rows = np.load(path)
            self.fresh += [(len(self.pool), row) for row in range(len(rows))]
            self.pool.append(rows)
            path.unlink()
        if found:
            self._shuffle()

    def _renew(self) -> None:
        """Rows of any shard again, when the fresh ones are used up: few, so that new shards come next."""
        for shard in self.rng.integers(len(self.pool), size=max(self.batch, self.enough // 2)).tolist():
            self.fresh.append((shard, int(self.rng.integers(len(self.pool[shard])))))

    def _shuffle(self) -> None:
        self.fresh = [self.fresh[i] for i in self.rng.permutation(len(self.fresh))]

"""Real vocabularies for the grammar benchmark: the bundled model's, mistral-common's tekken, or a file."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NANO = Path(__file__).parents[1] / "runtime" / "nano"


@dataclass
class BenchVocabulary:
    """Token ids are `n_special` + index in `tokens`; `enc` or `tokenizer_json` is what llguidance reads."""

    name: str
    tokens: list[bytes]
    n_special: int
    eos: int
    encode: Callable[[str], list[int]]
    enc: Any = None
    tokenizer_json: str = ""

    @property
    def size(self) -> int:
        return self.n_special + len(self.tokens)


def load(name: str) -> BenchVocabulary:
    if name == "nano":
        return _nano()
    return _tekken() if name == "tekken" else _file(Path(name))


def _nano() -> BenchVocabulary:
    from sgl.runtime.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(NANO)
    special = tokenizer.special_ids
    tokens = [b"" if i in special else token for i, token in enumerate(tokenizer.token_bytes)]

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, parse_special=False).tolist()

    return BenchVocabulary("nano", tokens, 0, tokenizer.eos_ids[0], encode, None, (NANO / "tokenizer.json").read_text())


def _tekken() -> BenchVocabulary:
    found = importlib.util.find_spec("mistral_common")
    if found is None or found.origin is None:
        raise SystemExit("--vocab tekken needs the vocabulary that mistral-common ships: pip install mistral-common")
    data = json.loads((Path(found.origin).parent / "data" / "tekken_240911.json").read_text())
    config = data["config"]
    special = config["default_num_special_tokens"]
    tokens = [base64.b64decode(row["token_bytes"]) for row in data["vocab"][: config["default_vocab_size"] - special]]
    return _by_tiktoken("tekken", tokens, special, 2, config["pattern"])


def _file(path: Path) -> BenchVocabulary:
    with gzip.open(path, "rt") as file:
        data = json.load(file)
    tokens = [base64.b64decode(token) for token in data["tokens"]]
    return _by_tiktoken(data["name"], tokens, data["n_special"], data["eos"], data["pat"])


def _by_tiktoken(name: str, tokens: list[bytes], n_special: int, eos: int, pattern: str) -> BenchVocabulary:
    import tiktoken

    ranks = {token: n_special + i for i, token in enumerate(tokens)}
    special = {f"<SPECIAL_{i}>": i for i in range(n_special)}
    enc = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    return BenchVocabulary(name, tokens, n_special, eos, lambda text: enc.encode(text, disallowed_special=()), enc)

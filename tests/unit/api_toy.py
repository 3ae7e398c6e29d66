"""A model for servers in tests: what it writes next is a function of the text so far, and of nothing else.

So a text that was made in one long answer is the text that many short ones would have made. A token is a run of
letters and digits, or one other character; a text that is cut inside a token goes on with the rest of it.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

TOKEN = re.compile(r"[^\W_]+|.|\n", re.DOTALL)
ALPHABET = 'abcde0123 .,\n"'
END = 0


def toy_hash(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


def next_char(text: str) -> str:
    """The character that the model writes behind `text`; "" where it ends."""
    draw = toy_hash(text[-8:])
    return "" if draw % 40 == 0 else ALPHABET[draw % len(ALPHABET)]


def natural_token(text: str) -> str:
    """The next token; "" for the end."""
    token = next_char(text)
    while token.isalnum() and (char := next_char(text + token)).isalnum():
        token += char
    return token


class ToyTokenizer:
    """Ids for tokens, given out when a token is first seen. `encode`, `decode` as tokenizers have them."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {"": END}
        self._tokens: list[str] = [""]
        self._lock = threading.Lock()

    def id(self, token: str) -> int:
        with self._lock:
            if token not in self._ids:
                self._ids[token] = len(self._tokens)
                self._tokens.append(token)
            return self._ids[token]

    def encode(self, text: str) -> list[int]:
        return [self.id(token) for token in TOKEN.findall(text)]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self._tokens[index] for index in ids)


TOKENIZER = ToyTokenizer()


def logprob(text: str, token: str) -> float:
    """The log-probability of `token` behind `text`: best for what the model writes by itself."""
    if token == natural_token(text):
        return -0.1
    return -1.0 - toy_hash("p", text[-8:], token) % 400 / 100


def score_tokens(text: str) -> list[tuple[str, float | None]]:
    """Each token of a text with its log-probability; the first has none."""
    rows: list[tuple[str, float | None]] = []
    before = ""
    for token in TOKEN.findall(text):
        rows.append((token, logprob(before, token) if before else None))
        before += token
    return rows


@dataclass
class Answer:
    """What the model wrote: tokens, and why it ended ("stop" or "length")."""

    text: str = ""
    tokens: list[str] = field(default_factory=list)
    finish: str = "stop"
    stop_sequence: str | None = None

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens)


def write(
    prompt: str,
    limit: int,
    stops: Iterable[str] = (),
    logit_bias: dict[str, float] | None = None,
    script: str | None = None,
) -> Answer:
    """Let the model write behind `prompt`; with a `script` it writes that text instead of its own."""
    answer = Answer()
    bias = {TOKENIZER.decode([int(token)]): value for token, value in (logit_bias or {}).items()}
    while True:
        if len(answer.tokens) >= limit:
            answer.finish = "length"
            return answer
        token = _next(prompt + answer.text, bias) if script is None else _scripted(script, answer.text)
        if not token:
            return answer
        answer.tokens.append(token)
        answer.text += token
        if _cut(answer, stops):
            return answer


def _next(text: str, bias: dict[str, float]) -> str:
    natural = natural_token(text)
    best = max(bias.values(), default=0.0)
    if best <= bias.get(natural, 0.0):
        return natural
    return max((token for token in bias if bias[token] == best), key=lambda token: logprob(text, token))


def _scripted(script: str, done: str) -> str:
    found = TOKEN.match(script, len(done))
    return found.group() if found else ""


def _cut(answer: Answer, stops: Iterable[str]) -> bool:
    hits = [(answer.text.index(stop), stop) for stop in stops if stop in answer.text]
    if hits:
        at, answer.stop_sequence = min(hits)
        answer.text, answer.finish = answer.text[:at], "stop"
        kept: list[str] = []
        for token in answer.tokens:  # the counts keep the stop, as those of real servers do; the texts do not
            kept.append(token[: max(at, 0)])
            at -= len(token)
        answer.tokens = kept
    return bool(hits)


def instance(schema: dict[str, Any], seed: str, root: dict[str, Any] | None = None) -> Any:
    """Some value that fulfils a JSON schema, the same for the same seed."""
    root = root or schema
    draw = toy_hash(seed)
    if "$ref" in schema:
        return instance(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], seed, root)
    if "enum" in schema:
        return schema["enum"][draw % len(schema["enum"])]
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return instance(schema["anyOf"][draw % len(schema["anyOf"])], seed, root)
    kind = schema.get("type")
    if kind == "object":
        return {k: instance(v, seed + k, root) for k, v in schema.get("properties", {}).items()}
    if kind == "array":
        return [instance(schema["items"], f"{seed}{index}", root) for index in range(2)]
    plain = {"integer": draw % 100, "number": draw % 100 / 4, "boolean": draw % 2 == 0, "null": None}
    return plain[kind] if kind in plain else f"t{draw % 1000}"


def json_script(schema: dict[str, Any], seed: str) -> str:
    return json.dumps(instance(schema, seed))

"""What drafts are tested with: texts, parameters and grammars, and a drafter that says what it is told to."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from sgl.grammars import compile_json_schema, compile_regex
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.sequences.draft_tokens import DraftSource, DraftTokens
from sgl.runtime.speculative.speculation import Speculation

PROMPTS = [
    "The capital of France is",
    "one two three one two three one two",
    '{"name": "Ann", "age": 31}\n{"name": "Bob", "age": 27}\n{"name":',
    "x",
    "Hello! Hello! Hello! Hello!",
    "a b c d e f g a b c d e f g a b c",
]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["alpha", "alpine"]},
        "n": {"type": "integer"},
    },
    "required": ["name", "kind", "n"],
}
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 20, "min_p": 0.02},
    {"temperature": 1.5, "top_n_sigma": 1.2},
    {"temperature": 0.8, "frequency_penalty": 0.6, "presence_penalty": 0.3},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "min_tokens": 12},
    {"temperature": 0, "stop": (" t", "e,")},
    {"temperature": 0, "logprobs": True, "top_logprobs": 3},
    {"temperature": 1.2, "logit_bias": {40: 4.0, 50: -9.0}, "stop_regex": (r"\d\d",)},
    {"temperature": 0, "max_tokens": 1},
    {"temperature": 0.5, "max_tokens": 5},
]


@dataclass
class Told:
    """Drafts what it was told would come, wrong from a random place on; or random tokens, or far too many."""

    how: str = "right"
    answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # by prompt
    draw: random.Random = field(default_factory=lambda: random.Random(1))

    def propose(self, seq: Any, op: Any, most: int) -> DraftTokens | None:
        tokens, start = seq.tokens.array.tolist(), op.decoding.prompt_tokens
        rest = self.answers.get(tuple(tokens[:start]), [])[len(tokens) - start :]
        if self.how == "random" or (self.how == "mixed" and self.draw.random() < 0.3):
            rest = [self.draw.randrange(300) for _ in range(self.draw.randrange(1, 20))]
        elif self.how == "mixed":
            rest = [token if self.draw.random() < 0.8 else (token + 1) % 300 for token in rest]
        if self.how == "long":
            return DraftTokens(rest + [7] * 40, DraftSource("told"))
        return DraftTokens(rest[:most], DraftSource("told")) if rest[:most] else None

    def learn(self, seq: Any, decoding: Any) -> None:
        pass

    def forget(self) -> None:
        pass


def speculation(engine: Engine, *drafters: Any) -> Speculation:
    """With these drafters, whose drafts are all taken."""
    found = engine._core.life.speculation
    assert found is not None
    found.drafters, found.control, found.trials = list(drafters), None, None
    return found


def grammars(engine: Engine) -> list[Any]:
    vocabulary = engine.vocabulary
    return [
        None,
        compile_json_schema(SCHEMA, vocabulary),
        compile_regex(r"(yes|no|maybe)( (yes|no|maybe)){2,9}\.", vocabulary),
    ]


def opened(engine: Engine, text: str) -> Any:
    sequence = engine.open()
    sequence.extend(engine.tokenizer.encode(text))
    return sequence


def parts(result: Any) -> tuple[Any, ...]:
    return (
        result.text,
        result.token_ids,
        result.finish_reason,
        result.logprobs,
        result.top_logprobs,
        result.forced_tokens,
    )


def cases(engine: Engine) -> list[tuple[str, SamplingParams, int]]:
    draw = random.Random(3)
    found = []
    for number, options in enumerate(PARAMS * 3):
        params = SamplingParams(**{"max_tokens": 28, "seed": number, "error_on_truncation": False} | options)
        found.append((draw.choice(PROMPTS), params, number % 3))
    return found

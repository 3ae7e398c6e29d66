"""Random programs on an engine: schemas, parameters, seeds, forks, cuts and aborts, in an order that a seed decides."""

from __future__ import annotations

import random
from typing import Any

from draft_rig import PROMPTS

from sgl.grammars import compile_json_schema, compile_regex
from sgl.runtime import Engine, SamplingParams

REGEXES = (
    r"(yes|no|maybe)( (yes|no|maybe)){2,9}\.",
    r"[a-z]{3,9}( [a-z0-9]{2,5}){1,6}\.",
    r"(\d{1,3}, ){3,12}end",
    r'"[^"\n]{5,40}"',
)
WORDS = ("name", "kind", "n", "total", "currency", "alpha", "alpine", "EUR", "items", "ok")


def schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "integer", "boolean", "enum", "number"] + (["object", "array"] if depth < 2 else [])
    kind = "object" if depth == 0 else draw.choice(kinds)
    if kind == "enum":
        return {"enum": draw.sample(WORDS, draw.randint(1, 4))}
    if kind == "array":
        return {"type": "array", "items": schema(draw, depth + 1), "maxItems": draw.randint(1, 3)}
    if kind == "object":
        names = draw.sample(WORDS, draw.randint(1, 4))
        required = [name for name in names if draw.random() < 0.7]
        return {
            "type": "object",
            "properties": {name: schema(draw, depth + 1) for name in names},
            "required": required,
            "additionalProperties": False,
        }
    return {"type": kind} | ({"maxLength": draw.randint(1, 20)} if kind == "string" else {})


def params(draw: random.Random) -> SamplingParams:
    found: dict[str, Any] = {
        "max_tokens": draw.choice([1, 2, 7, 20, 40]),
        "seed": draw.randrange(1000),
        "temperature": draw.choice([0.0, 0.0, 0.7, 1.2]),
    }
    more = [
        {"top_p": 0.9},
        {"top_k": 12},
        {"min_p": 0.03},
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 0.7},
        {"presence_penalty": 0.5},
        {"min_tokens": min(5, found["max_tokens"])},
        {"stop": (" t", "e,")},
        {"logprobs": True, "top_logprobs": 2},
        {"ignore_eos": True},
        {"logit_bias": {40: 3.0}},
        {},
    ]
    for each in draw.sample(more, draw.randint(0, 3)):
        found |= each
    return SamplingParams(**found, error_on_truncation=False)


def walk(engine: Engine, seed: int, count: int) -> list[Any]:
    """What `count` sequences were answered, several at a time."""
    draw, futures, aborted = random.Random(seed), [], []
    for _ in range(count):
        sequence = engine.open(namespace=draw.choice(["", "other"]))
        sequence.extend(engine.tokenizer.encode(draw.choice(PROMPTS) + draw.choice(PROMPTS)[: draw.randrange(20)]))
        for _ in range(draw.randint(1, 3)):
            futures.append(sequence.generate(params(draw), _grammar(engine, draw)))
            if draw.random() < 0.3:
                futures += [
                    child.generate(params(draw), _grammar(engine, draw)) for child in sequence.fork(draw.randint(1, 3))
                ]
            if draw.random() < 0.4:
                sequence.extend(
                    engine.tokenizer.encode(draw.choice(PROMPTS))[: draw.randint(1, 12)], drop=draw.randint(0, 2)
                )
        if draw.random() < 0.2:
            other = engine.open()
            other.extend(engine.tokenizer.encode(draw.choice(PROMPTS)))
            aborted.append(other.generate(SamplingParams(max_tokens=300, ignore_eos=True)))
            other.abort()
        if draw.random() < 0.15:
            futures[-1].exception(60)
            engine.flush_cache()
    for future in aborted:
        future.exception(60)
    return [(future.exception(60) and type(future.exception(60))) or _parts(future.result(60)) for future in futures]


def _grammar(engine: Engine, draw: random.Random) -> Any:
    kind = draw.random()
    if kind < 0.35:
        return None
    return (
        compile_regex(draw.choice(REGEXES), engine.vocabulary)
        if kind < 0.6
        else compile_json_schema(schema(draw), engine.vocabulary)
    )


def _parts(result: Any) -> tuple[Any, ...]:
    return result.text, result.token_ids, result.finish_reason, repr(result.logprobs), repr(result.top_logprobs)

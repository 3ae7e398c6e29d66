"""What OpenAI's answers have in common: how they begin, why a text ended, what was counted."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from sgl.runtime.engine import Engine
from sgl.runtime.sequences.generation import Generation

Json = dict[str, Any]


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Json | None = None
    completion_tokens_details: Json | None = None  # where there were draft tokens


class OpenAICompletion(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage


def response_head(engine: Engine, model: str, prefix: str, kind: str) -> Json:
    """The fields with which an answer and each of its events begin."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": fingerprint(engine),
    }


def fingerprint(engine: Engine) -> str:
    """The same for engines that run the same model in the same way."""
    info = engine.fixed_info
    what = (engine.model_path, *(info[name] for name in ("device", "dtype", "weights", "kv_dtype", "attention")))
    return "fp_" + hashlib.blake2b(repr(what).encode(), digest_size=5).hexdigest()


def finish_reason(generation: Generation) -> str:
    """`length` where the token limit or the context ended it, else `stop`."""
    return "length" if generation.finish_reason["type"] == "length" else "stop"


def usage(prompts: Iterable[Sequence[Generation]]) -> Json:
    """Token counts of the samples of each prompt; a prompt counts once however many samples it has."""
    groups = [list(group) for group in prompts]
    prompt = sum(group[0].prompt_tokens for group in groups)
    completion = sum(generation.completion_tokens for group in groups for generation in group)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(group[0].cached_tokens for group in groups)},
        **predicted(generation for group in groups for generation in group),
    }


def predicted(made: Iterable[Generation]) -> Json:
    """Counts of draft tokens, where there were any."""
    counts = [(generation.drafted_tokens, generation.accepted_tokens) for generation in made]
    drafted, accepted = sum(pair[0] for pair in counts), sum(pair[1] for pair in counts)
    if not drafted:
        return {}
    return {
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        }
    }

"""One drawn configuration through transformers and through us: equal, or refused with words; anything else is a bug."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from family_walk_draws import LONGEST, Draw
from rig import Rig, Row

from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.loading import load_model
from sgl.runtime.models.families import read_model

TOLERANCE = 1e-4  # of the largest logit
LENGTH, DECODED = 96, 10
IMPLEMENTATION = {"FalconForCausalLM": "sdpa"}  # eager adds ALiBi twice


class Outcome(NamedTuple):
    """what: "equal", "refused" (by us), "theirs" (transformers does not take it)."""

    what: str
    why: str = ""


def walk(drawn: Draw, path: Path, seed: int) -> Outcome:
    """Raises AssertionError for a difference, and whatever else goes wrong in us."""
    try:
        model = written(drawn, path, seed)
        model(torch.tensor([[5, 6, 7]]), use_cache=False)
    except Exception as error:
        return _theirs(drawn, error)
    return compared(model, drawn, path, seed)


def _theirs(drawn: Draw, error: Exception) -> Outcome:
    """What transformers refuses we may refuse or not; with words."""
    try:
        read_model(drawn.values)
    except ConfigError:
        pass
    return Outcome("theirs", f"{type(error).__name__}: {error}"[:300])


def written(drawn: Draw, path: Path, seed: int) -> transformers.PreTrainedModel:
    """A checkpoint with random weights and exactly this config.json; the model as transformers reads it from there."""
    dice, kind = random.Random(seed), getattr(transformers, drawn.architecture)
    model = kind(kind.config_class.from_dict(copy.deepcopy(drawn.values))).eval()
    randomise(model, seed)
    model.to(dice.choice((torch.float32, torch.float32, torch.bfloat16, torch.float16)))
    model.save_pretrained(path, max_shard_size=dice.choice(("1GB", "40KB")))
    (path / "config.json").write_text(json.dumps(drawn.values))
    found, report = kind.from_pretrained(
        path,
        dtype=torch.float32,
        attn_implementation=IMPLEMENTATION.get(drawn.architecture, "eager"),
        experts_implementation="eager",
        output_loading_info=True,
    )
    assert not report["missing_keys"], report
    return found.eval()


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> None:
    """Every parameter: of one dimension around 0.7, matrices so that layers keep the size of what they compute."""
    generator = torch.Generator().manual_seed(seed + 1)
    spread = 0.8 + 0.8 * float(torch.rand((), generator=generator))
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            parameter.normal_(0.7, 0.3, generator=generator)
        elif any(part in name for part in ("embed", "wte", "wpe")):
            parameter.normal_(0.0, 0.6, generator=generator)
        else:
            parameter.normal_(0.0, spread / parameter.shape[-1] ** 0.5, generator=generator)


def compared(model: transformers.PreTrainedModel, drawn: Draw, path: Path, seed: int) -> Outcome:
    try:
        rig = Rig(path, attention="torch_native", model=load_model(path, context=drawn.context))
    except (ConfigError, CheckpointError) as error:
        return Outcome("refused", _worded(str(error), drawn))
    vocabulary = rig.model.config.vocab_size
    tokens = random.Random(seed).choices(range(4, vocabulary), k=LENGTH)
    expected = logits_of(model, tokens)
    if not expected.isfinite().all():
        return Outcome("theirs", "not finite")
    cold = rig.step([(Row(tokens), LENGTH)], every_row=True)
    if difference(cold, expected) > TOLERANCE and difference(cold, expected) <= 4 * _rounding(model, tokens, expected):
        return Outcome("equal", "but for rounding, which this configuration makes large")
    close(cold, expected, "one prefill")
    _chunked(rig, tokens, expected, random.Random(seed))
    for each in (rig, Rig(path, model=load_model(path, context=drawn.context), seed=seed)):
        _forked(each, model, tokens)
        _decoded(each, model, tokens)
    return Outcome("equal")


def _worded(message: str, drawn: Draw) -> str:
    """Names the file and a key with its value, or a tensor."""
    values = drawn.values | drawn.values.get("text_config", {})
    keys = [key for key in [*values, *_inner(values)] if key in message]
    assert "config.json" in message or "safetensors" in message or "tensors" in message, message
    assert keys or "tensor" in message or "is missing" in message, f"names no key: {message}"
    return message


def _inner(values: dict[str, Any]) -> list[str]:
    found: list[str] = ["partial_rotary_factor", "num_key_value_heads", "num_kv_heads"]
    for value in values.values():
        if isinstance(value, dict):
            found += [*map(str, value), *_inner(value)]
    return found


@torch.no_grad()
def logits_of(model: transformers.PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()


def _rounding(model: transformers.PreTrainedModel, tokens: list[int], expected: torch.Tensor) -> float:
    """How far transformers' own float32 is from its float64."""
    return difference(expected, logits_of(copy.deepcopy(model).double(), tokens))


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Of the largest logit."""
    return float((found.float() - expected).abs().max() / expected.abs().max())


def close(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    error = difference(found, expected)
    assert error <= TOLERANCE, f"{what}: logits differ by {error:.1e} of the largest"


def _chunked(rig: Rig, tokens: list[int], expected: torch.Tensor, dice: random.Random) -> None:
    row, found = Row(tokens), []
    while row.pending:
        found.append(rig.step([(row, min(row.pending, dice.choice((1, 3, 11, 40))))], every_row=True))
    close(torch.cat(found), expected, "chunks")


def _forked(rig: Rig, model: transformers.PreTrainedModel, tokens: list[int]) -> None:
    """Two children of one prefix and a stranger, in one step."""
    parent = Row(tokens)
    rig.step([(parent, 33)])
    children = [parent.behind(tokens[:33] + more) for more in (tokens[40:49], tokens[3:4])]
    stranger = Row(tokens[20:45])
    found = rig.step([(children[1], 1), (children[0], 9), (stranger, 25)])
    for logits, row in zip(found, (children[1], children[0], stranger), strict=True):
        close(logits, logits_of(model, row.tokens)[-1], "forks")


def _decoded(rig: Rig, model: transformers.PreTrainedModel, tokens: list[int]) -> None:
    """Greedy text; where two tokens are as good as one another transformers may take the other."""
    row, found = Row(tokens[:50]), []
    logits = rig.step([(row, 50)])
    for _ in range(DECODED):
        row.tokens.append(int(logits[0].argmax()))
        logits = rig.step([(row, 1)])
        found.append(logits)
    expected = logits_of(model, row.tokens)
    close(torch.cat(found), expected[50:], "decode")
    greedy(row.tokens[50:], expected[49:])


def greedy(chosen: list[int], expected: torch.Tensor) -> None:
    """chosen: tokens whose logits by transformers are `expected` [tokens or more, vocabulary]."""
    size = float(expected.abs().max())
    for token, logits in zip(chosen, expected, strict=False):
        assert float(logits.max() - logits[token]) <= 2 * TOLERANCE * size, "greedy tokens differ"


assert LENGTH + DECODED <= LONGEST

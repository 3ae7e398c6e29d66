"""A family against transformers: a tiny checkpoint with random weights,
computed cold, in chunks, forked and decoded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from rig import Rig, Row

LENGTH = 60
CHUNKS = (7, 1, 19, 3, 30)
DECODED = 12
TOLERANCE = 2e-5  # of the largest logit

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


def reference(architecture: str, seed: int = 0, **keys: Any) -> transformers.PreTrainedModel:
    """transformers' float32 model of a class, eager attention, with every parameter random, those of norms too.

    keys: of its configuration, beside SIZES; a key set to `...` is left out.
    """
    kind = getattr(transformers, architecture)
    values = {key: value for key, value in (SIZES | keys).items() if value is not ...}
    config = kind.config_class(**values)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = kind(config).eval()
    randomise(model, seed)
    return model


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed + 1)
    scalars = [buffer for name, buffer in model.named_buffers() if name.endswith("layer_scalar")]
    for parameter in (*model.parameters(), *scalars):
        if parameter.dim() == 1:
            parameter.normal_(0.7, 0.3, generator=generator)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            tensor.normal_(0.0, 0.2, generator=generator)


def prompt(vocabulary: int, length: int = LENGTH, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, vocabulary, (length,), generator=generator).tolist()


def check_family(architecture: str, path: Path, seed: int = 0, tolerance: float = TOLERANCE, **keys: Any) -> Rig:
    """Raises AssertionError where our logits or greedy tokens are not those of transformers."""
    model = reference(architecture, seed, **keys)
    model.save_pretrained(path)
    return check_checkpoint(model, path, tolerance)


def check_checkpoint(model: transformers.PreTrainedModel, path: Path, tolerance: float = TOLERANCE) -> Rig:
    rig = Rig(path, attention="torch_native")
    tokens = prompt(rig.model.config.vocab_size)
    expected = logits_of(model, tokens)
    _cold(rig, tokens, expected, tolerance)
    _chunked(rig, tokens, expected, tolerance)
    _forked(rig, model, tokens, tolerance)
    _decoded(rig, model, tokens)
    _decoded(Rig(path), model, tokens)  # by the fastest kernels that take it
    return rig


@torch.no_grad()
def logits_of(model: transformers.PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str) -> None:
    error = float((found.float() - expected).abs().max() / expected.abs().max())
    assert error <= tolerance, f"{what}: logits differ by {error:.1e} of the largest"


def _cold(rig: Rig, tokens: list[int], expected: torch.Tensor, tolerance: float) -> None:
    close(rig.step([(Row(tokens), len(tokens))], every_row=True), expected, tolerance, "one prefill")


def _chunked(rig: Rig, tokens: list[int], expected: torch.Tensor, tolerance: float) -> None:
    row, found = Row(tokens), []
    for count in CHUNKS:
        found.append(rig.step([(row, count)], every_row=True))
    close(torch.cat(found), expected, tolerance, "chunks")


def _forked(rig: Rig, model: transformers.PreTrainedModel, tokens: list[int], tolerance: float) -> None:
    """Two children of one prefix and a stranger, in one step."""
    parent = Row(tokens)
    rig.step([(parent, 33)])
    children = [parent.behind(tokens[:33] + more) for more in (tokens[40:49], tokens[3:4])]
    stranger = Row(tokens[20:45])
    found = rig.step([(children[1], 1), (children[0], 9), (stranger, 25)])
    for logits, row in zip(found, (children[1], children[0], stranger), strict=True):
        close(logits, logits_of(model, row.tokens)[-1], tolerance, "forks")


def _decoded(rig: Rig, model: transformers.PreTrainedModel, tokens: list[int]) -> None:
    row, expected = Row(tokens[:30]), list(tokens[:30])
    rig_logits = rig.step([(row, 30)])
    for _ in range(DECODED):
        expected.append(int(logits_of(model, expected)[-1].argmax()))
        row.tokens.append(int(rig_logits[0].argmax()))
        assert row.tokens == expected, "greedy tokens differ"
        rig_logits = rig.step([(row, 1)])

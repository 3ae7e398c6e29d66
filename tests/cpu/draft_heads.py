"""Tiny targets with random heads in their published layouts, and what the heads
guess by plain torch from full forwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from checkpoints import edit_json, reference_model, write_tokenizer
from family_checks import reference
from safetensors.torch import load_file, save_file
from test_families_experts import GLM
from test_families_latent import V3
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

Pair = tuple[Tensor, Tensor]  # logits and states of all places
LAYERS, DRAFTED = 7, 90
HEAD_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}


@dataclass
class Made:
    """target: with its tokenizer.  draft: for `Engine`.  states: the target's, [T,
    width], of tokens.  head: from tokens and states.
    """

    target: Path
    draft: Any
    states: Callable[[list[int]], Tensor]
    head: Callable[[list[int], Tensor], Pair]
    ids: Tensor | None = None

    @torch.no_grad()
    def logits(self, tokens: list[int], chain: list[int]) -> Tensor:
        """Of the guess behind `chain`, which was guessed behind `tokens`."""
        states, behind = self.states(tokens[:-1]), tokens[1:]
        scores, own = self.head(behind, states)
        for place, token in enumerate(chain):
            behind = [*behind, token]
            more = own[len(tokens) - 2 : len(tokens) - 1 + place]
            scores, own = self.mixed(behind, states, more)
        return scores[-1]

    def mixed(self, tokens: list[int], states: Tensor, own: Tensor) -> Pair:
        """States of the head itself behind those of the target."""
        return self.head(tokens, (states, own))  # type: ignore[arg-type]


def _joined(states: Any, fuse: Callable[[Tensor], Tensor] = lambda rows: rows) -> Tensor:
    return torch.cat([fuse(states[0]), states[1]]) if isinstance(states, tuple) else fuse(states)


def _layer(model: Any, layer: Any, x: Tensor, wide: Tensor | None = None) -> Tensor:
    """A decoder layer over all places."""
    positions = torch.arange(len(x))[None]
    angles = model.model.rotary_emb(x[None], positions)
    mask = torch.full((len(x), len(x)), -torch.inf).triu(1)[None, None]
    if wide is None:
        out = layer(x[None], attention_mask=mask, position_ids=positions, position_embeddings=angles)
        return (
            (out[0] if isinstance(out, tuple) else out)[0]
            if out is not None and not isinstance(out, Tensor)
            else out[0]
        )
    x = x + layer.self_attn(wide[None], attention_mask=mask, position_embeddings=angles)[0][0]
    return x + layer.mlp(layer.post_attention_layernorm(x))


def _hidden(model: Any, tokens: list[int]) -> Any:
    return model.model(torch.tensor([tokens]), output_hidden_states=True)


def _linear(outputs: int, inputs: int, bias: bool = False) -> nn.Linear:
    made = nn.Linear(inputs, outputs, bias)
    nn.init.normal_(made.weight, 0, 0.2)
    return made


def _norm(size: int = 64) -> Any:
    made = nn.RMSNorm(size, eps=1e-6)
    nn.init.normal_(made.weight, 1.0, 0.2)
    return made


def _llama(where: Path) -> Any:
    torch.manual_seed(3)
    model = reference_model("llama", num_hidden_layers=LAYERS)
    model.save_pretrained(where / "target")
    write_tokenizer(where / "target")
    model.config._attn_implementation = "eager"
    return model


def _write(path: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(HEAD_CONFIG | config))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors", {"format": "pt"}
    )
    return path


def _named(layer: nn.Module, prefix: str, *without: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in layer.state_dict().items() if name not in without}


def eagle(where: Path, own_embedding: bool = True) -> Made:
    model = _llama(where)
    with torch.no_grad():
        layer, fc = LlamaDecoderLayer(model.config, 0), _linear(64, 128, bias=True)
        layer.input_layernorm = nn.Identity()
        embedding = torch.randn(320, 64) if own_embedding else model.model.embed_tokens.weight
    tensors = _named(layer, "layers.0.") | {"fc.weight": fc.weight, "fc.bias": fc.bias}
    tensors |= {"embed_tokens.weight": embedding} if own_embedding else {}

    def head(tokens: list[int], states: Any) -> Pair:
        x = _layer(model, layer, fc(torch.cat([embedding[tokens], _joined(states)], 1)))
        return model.lm_head(x), x

    config = {"architectures": ["LlamaForCausalLM"], "bias": True, "intermediate_size": 96}
    return Made(
        where / "target",
        _write(where / "draft", tensors, **config),
        lambda tokens: _hidden(model, tokens).last_hidden_state[0],
        head,
    )


def eagle3(where: Path, listed: bool = False, normed: bool = False, own_head: bool = True) -> Made:
    """listed: config.json lists the layers.  normed: the residual is behind the
    norm.  own_head: with a vocabulary of its own.
    """
    model = _llama(where)
    with torch.no_grad():
        layer, fc, hidden_norm, norm, lm_head = (
            LlamaDecoderLayer(model.config, 0),
            _linear(64, 192),
            _norm(),
            _norm(),
            _linear(DRAFTED, 64),
        )
        for name, rows in (("q_proj", 64), ("k_proj", 32), ("v_proj", 32)):
            setattr(layer.self_attn, name, _linear(rows, 128))
        ids = torch.randperm(320)[:DRAFTED].sort().values
    begin = "layers.0." if listed else "midlayer."
    tensors = _named(layer, begin) | {
        f"{begin}hidden_norm.weight": hidden_norm.weight,
        "fc.weight": fc.weight,
        "norm.weight": norm.weight,
    }
    if own_head:
        tensors |= {
            "lm_head.weight": lm_head.weight,
            "d2t": ids - torch.arange(DRAFTED),
            "t2d": torch.zeros(320, dtype=torch.bool),
        }
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "intermediate_size": 96,
        "norm_before_residual": normed,
    }
    config |= {"draft_vocab_size": DRAFTED} if own_head else {}
    config |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 4]}} if listed else {}

    def head(tokens: list[int], states: Any) -> Pair:
        f = _joined(states, fc)
        y = hidden_norm(f)
        x = _layer(
            model,
            layer,
            y if normed else f,
            torch.cat([layer.input_layernorm(model.model.embed_tokens.weight[tokens]), y], 1),
        )
        return (lm_head if own_head else model.lm_head)(norm(x)), x

    def states(tokens: list[int]) -> Tensor:
        found = _hidden(model, tokens).hidden_states
        return torch.cat([found[layer][0] for layer in ((1, 2, 5) if listed else (2, 3, 4))], 1)

    return Made(where / "target", _write(where / "draft", tensors, **config), states, head, ids if own_head else None)


def mtp(where: Path, architecture: str = "DeepseekV3ForCausalLM", keys: dict[str, Any] = V3) -> Made:
    """Its layer behind the last one is that of a model with one layer more."""
    keys = keys | {"num_nextn_predict_layers": 0, "max_position_embeddings": 512}
    more, model = (reference(architecture, **keys | {"num_hidden_layers": count}) for count in (4, 3))
    hidden, vocabulary = model.config.hidden_size, model.config.vocab_size
    model.save_pretrained(where / "target")
    write_tokenizer(where / "target")
    edit_json(where / "target" / "config.json", num_nextn_predict_layers=1)
    torch.manual_seed(5)
    with torch.no_grad():
        layer, fc, enorm, hnorm, norm, lm_head = (
            more.model.layers[3],
            _linear(hidden, 2 * hidden),
            _norm(hidden),
            _norm(hidden),
            _norm(hidden),
            _linear(vocabulary, hidden),
        )
    file, begin = where / "target" / "model.safetensors", "model.layers.3."
    (where / "more").mkdir()
    more.save_pretrained(where / "more")
    added = {
        name: tensor
        for name, tensor in load_file(where / "more" / "model.safetensors").items()
        if name.startswith(begin)
    }
    added |= {
        f"{begin}{name}.weight": part.weight
        for name, part in (
            ("eh_proj", fc),
            ("enorm", enorm),
            ("hnorm", hnorm),
            ("shared_head.norm", norm),
            ("shared_head.head", lm_head),
        )
    }
    added[f"{begin}embed_tokens.weight"] = model.model.embed_tokens.weight
    save_file(
        load_file(file) | {name: tensor.detach().clone() for name, tensor in added.items()}, file, {"format": "pt"}
    )
    model.config._attn_implementation = more.config._attn_implementation = "eager"

    def head(tokens: list[int], states: Any) -> Pair:
        x = fc(torch.cat([enorm(model.model.embed_tokens.weight[tokens]), hnorm(_joined(states))], 1))
        y = norm(_layer(more, layer, x))
        return lm_head(y), y

    return Made(where / "target", "mtp", lambda tokens: _hidden(model, tokens).last_hidden_state[0], head)


KINDS: dict[str, Callable[[Path], Made]] = {
    "EAGLE": eagle,
    "EAGLE, the target's embedding": lambda where: eagle(where, own_embedding=False),
    "EAGLE-3": eagle3,
    "EAGLE-3, layers listed, residual normed": lambda where: eagle3(where, listed=True, normed=True),
    "EAGLE-3, the target's head": lambda where: eagle3(where, own_head=False),
    "MTP, DeepSeek-V3": mtp,
    "MTP, GLM-4.5": lambda where: mtp(where, "Glm4MoeForCausalLM", GLM | {"first_k_dense_replace": 1}),
}

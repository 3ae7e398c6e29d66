"""The Llama architecture in plain torch, with the parameter names of transformers' LlamaForCausalLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

Attend = Callable[[Tensor, Tensor, Tensor, Any], Tensor]
"""q [B, heads, T, D], k and v [B, kv_heads, T, D] and a mask -> [B, heads, T, D]."""


class AttentionKind(Protocol):
    """A way to attend causally within the documents of a row."""

    def mask(self, documents: Tensor) -> Any:
        """The mask that `attend` takes, from the document numbers int [B, T]."""

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        """Mixes values: shapes as in Attend."""


Rope = tuple[Tensor, Tensor]
"""Cosines and sines float32 [T, head]."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; the default is sgl-nano with 15.7M parameters, all counted."""

    vocabulary: int = 8192
    hidden: int = 384
    layers: int = 8
    heads: int = 6
    kv_heads: int = 2
    inner: int = 1024
    context: int = 2048
    rope_theta: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head(self) -> int:
        return self.hidden // self.heads


class RMSNorm(nn.Module):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), self.epsilon).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.kv_heads * shape.head
        self.q_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k_proj = nn.Linear(shape.hidden, width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, width, bias=False)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor, rope: Rope, attend: Attend, mask: Any) -> Tensor:
        q, k, v = (self._heads(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        mixed = attend(rotate(q, rope), rotate(k, rope), v, mask)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.shape.head)).transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.input_layernorm = RMSNorm(shape.hidden, shape.epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.epsilon)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, rope: Rope, attend: Attend, mask: Any) -> Tensor:
        x = x + self._dropped(self.self_attn(self.input_layernorm(x), rope, attend, mask))
        return x + self._dropped(self.mlp(self.post_attention_layernorm(x)))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Body(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, dropout) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.epsilon)


class Nano(nn.Module):
    """Token ids int [B, T] to logits [B, T, vocabulary]; the output matrix is the embedding.

    In training mode `dropout` is the share of values left out after the embedding and in each residual.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.dropout = dropout
        self.model = Body(shape, dropout)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        cos, sin = rope_table(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids: Tensor, attend: Attend, mask: Any = None) -> Tensor:
        length = ids.shape[1]
        rope = self.cos[:length], self.sin[:length]
        x = self.model.embed_tokens(ids)
        if self.dropout:
            x = F.dropout(x, self.dropout, self.training)
        for layer in self.model.layers:
            x = layer(x, rope, attend, mask)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


def rope_table(shape: Shape) -> Rope:
    """Cosines and sines float32 [context, head]."""
    steps = torch.arange(0, shape.head, 2, dtype=torch.float32) / shape.head
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float32), shape.rope_theta**-steps)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rope: Rope) -> Tensor:
    cos, sin = rope
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


class DenseAttention:
    """Attention with a full mask: the plain way, for any device."""

    def mask(self, documents: Tensor) -> Tensor:
        length = documents.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
        return (causal & (documents[:, :, None] == documents[:, None, :]))[:, None]

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


class CausalAttention:
    """Attention over the whole row, documents before included: fast wherever torch is."""

    def mask(self, documents: Tensor) -> None:
        return None

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class BlockAttention:
    """FlexAttention with a block mask: fast on CUDA, needs torch.compile."""

    def __init__(self) -> None:
        self._create = torch.compile(create_block_mask, dynamic=False)

    def mask(self, documents: Tensor) -> BlockMask:
        def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (q >= k) & (documents[b, q] == documents[b, k])

        count, length = documents.shape
        return self._create(visible, count, None, length, length, device=str(documents.device))

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        assert isinstance(out, Tensor)
        return out

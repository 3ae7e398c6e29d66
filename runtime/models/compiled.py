"""A step of few tokens, all layers in one call of the compiled kernels (cpu_step.h), on a CPU.

It rounds where the layers of decoder.py round, which are its oracle: set `Decoder.step` to None, and they do the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from ..attention.base import AttentionBackend
from ..attention.cpu import CpuAttention
from ..cache.kv import KVPool
from ..layers import cpu
from ..layers.linear import BlockedLinear
from ..step.batch import Batch

if TYPE_CHECKING:
    from .decoder import Decoder, Layer

MOST_TOKENS = 512  # of a step; what it needs for each of them is kept
MOST_TO_MOVE = 512 * 2**20  # bytes of weights that are laid together: for a moment they are there twice
PROJECTIONS = ("qkv", "output", "gate_up", "down")


class CompiledStep:
    """Runs steps of a sealed decoder, one at a time: it keeps the space that they need."""

    def __init__(self, model: Decoder) -> None:
        config = model.config
        self._vocabulary = config.vocab_size
        self._rotary = model.rotary
        self._most = min(MOST_TOKENS, cpu.most_rows(model.dtype) or MOST_TOKENS)
        self._model = _words(model)
        windows = sorted(set(config.windows), key=config.windows.index)
        self._windows = np.array([windows.index(window) for window in config.windows], np.int64)
        self._firsts = [config.windows.index(window) for window in windows]
        self._numbers = _numbers(model)
        self._space = torch.empty(0, dtype=model.dtype)

    @classmethod
    def of(cls, model: Decoder) -> CompiledStep | None:
        """None where the kernels cannot compute what the model has."""
        products = [model.head, *(getattr(layer, name) for layer in model.layers for name in PROJECTIONS)]
        blocked = [product for product in products if isinstance(product, BlockedLinear)]
        if len(blocked) < len(products) or model.config.head_dim > cpu.MOST_DIM:
            return None
        if sum(product.weight.nbytes for product in blocked) <= MOST_TO_MOVE:
            BlockedLinear.lay_together(blocked)
        return cls(model)

    def suits(self, batch: Batch, attention: AttentionBackend) -> bool:
        """Whether a planned batch is one for it: few tokens, all attended by the kernels."""
        if len(batch.token_ids) > self._most or batch.pools or not isinstance(attention, CpuAttention):
            return False
        return not batch.plan[0].prefills

    def run(self, batch: Batch, pool: KVPool) -> Tensor:
        """Logits of the batch's `logit_rows`, float32 [R, vocabulary]; those rows are in rising order."""
        rows, results = len(batch.token_ids), len(batch.logit_rows)
        if len(self._space) < rows * self._numbers:
            self._space = self._space.new_empty(rows * self._numbers)
        logits = torch.empty(results, self._vocabulary, dtype=torch.float32)
        seen = [pointer for layer in self._firsts for pointer in batch.plan[layer].tokens.pointers]
        step = np.array([
            rows, results, pool.slots,
            batch.token_ids.data_ptr(), batch.positions.data_ptr(), batch.slots.data_ptr(),
            0 if results == rows else batch.logit_rows.data_ptr(), self._windows.ctypes.data,
            self._rotary.reach(max(batch.context_lens)).data_ptr(),
            pool.k.data_ptr(), pool.v.data_ptr(), self._space.data_ptr(), logits.data_ptr(), *seen,
        ], np.int64)  # fmt: skip
        cpu.kernels.step(self._model.ctypes.data, step.ctypes.data)
        return logits


def _words(model: Decoder) -> np.ndarray:
    """The struct Model."""
    config = model.config
    sizes = [
        cpu.KINDS[model.dtype], config.num_layers, config.hidden_size, config.intermediate_size, config.num_heads,
        config.num_kv_heads, config.head_dim, round(config.rms_eps * 1e12),
    ]  # fmt: skip
    places = [model.embedding.data_ptr(), model.norm.weight.data_ptr()]
    head = cast(BlockedLinear, model.head).words
    layers = [_layer_words(layer) for layer in model.layers]
    return np.concatenate([sizes, places, head, *layers]).astype(np.int64)


def _layer_words(layer: Layer) -> np.ndarray:
    """The struct Layer."""
    head_norm = 0 if layer.qk_norm is None else layer.qk_norm.weight.data_ptr()
    norms = [layer.attention_norm.weight.data_ptr(), head_norm, layer.mlp_norm.weight.data_ptr()]
    return np.concatenate([norms, *(getattr(layer, name).words for name in PROJECTIONS)])


def _numbers(model: Decoder) -> int:
    """How many a token needs: see run_step."""
    config = model.config
    mixed = config.num_heads * config.head_dim
    wide = max(mixed + 2 * config.num_kv_heads * config.head_dim, 2 * config.intermediate_size)
    return 2 * config.hidden_size + wide + mixed + config.intermediate_size

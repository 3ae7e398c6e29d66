"""The one decoder behind every supported architecture: pre-norm, rotary, grouped-query attention, gated MLP."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ..attention.base import AttentionBackend
from ..layers.activation import silu_and_mul
from ..layers.linear import Linear
from ..layers.norm import HeadNorm, RMSNorm
from ..layers.rotary import Angles, Rotary, rotate
from ..step.batch import Batch
from .compiled import CompiledStep
from .config import ModelConfig

Transform = Callable[[str, Linear], Linear]  # a projection's name and the loaded layer -> the one to compute with
SMALL_MODEL = 512 * 2**20  # bytes of weights up to which faster layouts are kept beside plain and shared ones


class Layer:
    """One block. `x` is [T, hidden] throughout; blocks write into the residual they are given."""

    def __init__(self, config: ModelConfig, index: int, dtype: torch.dtype, device: torch.device) -> None:
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        self.index, self.head_dim = index, dim
        self.heads = (config.num_heads, config.num_kv_heads)
        all_heads = config.num_heads + 2 * config.num_kv_heads
        self.attention_norm = RMSNorm(hidden, config.rms_eps, dtype, device)
        self.qkv = Linear.empty(all_heads * dim, hidden, config.qkv_bias, dtype, device)
        self.qk_norm = HeadNorm(dim, config.rms_eps, dtype, device) if config.qk_norm else None
        self.output = Linear.empty(hidden, config.num_heads * dim, config.output_bias, dtype, device)
        self.mlp_norm = RMSNorm(hidden, config.rms_eps, dtype, device)
        self.gate_up = Linear.empty(2 * inner, hidden, config.mlp_bias, dtype, device)
        self.down = Linear.empty(hidden, inner, config.mlp_bias, dtype, device)

    def seal(self, keep_plain: bool, transform: Transform | None) -> None:
        for name in ("qkv", "output", "gate_up", "down"):
            setattr(self, name, _sealed(name, getattr(self, name), keep_plain, transform))
        if self.qk_norm is not None:
            self.qk_norm.seal(*self.heads)

    def forward(
        self, x: Tensor, angles: Angles, batch: Batch, attention: AttentionBackend, rows: Tensor | None
    ) -> Tensor:
        """`rows`: go on with these rows only once their keys and values are written."""
        mixed = self.attend(self.attention_norm(x), angles, batch, attention)
        if rows is not None:
            x, mixed = x.index_select(0, rows), mixed.index_select(0, rows)
        x = self.output.added_to(x, mixed)
        return self.down.added_to(x, silu_and_mul(self.gate_up(self.mlp_norm(x))))

    def attend(self, x: Tensor, angles: Angles, batch: Batch, attention: AttentionBackend) -> Tensor:
        queries, keys = self.heads
        qk, v = self.qkv(x).view(x.shape[0], -1, self.head_dim).split_with_sizes((queries + keys, keys), 1)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        q, k = rotate(qk, angles).split_with_sizes((queries, keys), 1)
        attention.store(k, v, self.index, batch)
        return attention.attend(q, k, v, self.index, batch).reshape(x.shape[0], -1)


class Decoder:
    """Weights are allocated empty; fill what `parameters` names, then call `seal` once.

    dtype: of weights, activations and KV.
    fused: steps run by Triton's kernels (fused.py), on a GPU where Triton is; otherwise by torch and cpu.c.
    step: runs steps of few tokens whole (compiled.py), once sealed, on a CPU with cpu.c; None: layer by layer.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.config, self.dtype, self.device = config, dtype, torch.device(device)
        hidden, vocabulary = config.hidden_size, config.vocab_size
        self.embedding = torch.empty(vocabulary, hidden, dtype=dtype, device=self.device)
        self.layers = [Layer(config, index, dtype, self.device) for index in range(config.num_layers)]
        self.norm = RMSNorm(hidden, config.rms_eps, dtype, self.device)
        self.head = Linear(self.embedding)
        if not config.tied_embeddings:
            self.head = Linear.empty(vocabulary, hidden, False, dtype, self.device)
        self.fused = _can_fuse(self.device)
        self.step: CompiledStep | None = None
        positions = config.max_position if self.fused else 64
        self.rotary = Rotary(config.rope, config.head_dim, dtype, self.device, positions)
        self.parameter_count = sum(place.numel() for place in self.parameters().values())

    @torch.inference_mode()
    def forward(self, batch: Batch, attention: AttentionBackend) -> Tensor:
        """Compute a planned batch: logits of its `logit_rows`, [R, vocabulary], float32 on the CPU, else `dtype`."""
        if self.fused:
            from . import fused

            return fused.forward(self, batch, attention)
        if self.step is not None and self.step.suits(batch, attention):
            return self.step.run(batch, attention.pool)
        angles = self.rotary.gather(batch.positions, max(batch.context_lens))
        x = self.embedding.index_select(0, _known_ids(batch))
        for layer in self.layers[:-1]:
            x = layer.forward(x, angles, batch, attention, None)
        last = self.layers[-1]
        if not (len(batch.logit_rows) or batch.pools):  # only keys and values are wanted
            last.attend(last.attention_norm(x), angles, batch, attention)
            return self.no_logits()
        all_rows = batch.pools or len(batch.logit_rows) == len(x)
        x = last.forward(x, angles, batch, attention, None if all_rows else batch.logit_rows)
        if batch.pools:
            return self.pooled(self.norm(x), batch)
        logits = self.head(self.norm(x))
        return logits.float() if self.device.type == "cpu" else logits

    def pooled(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Fill the batch's sums from the normed states of all its tokens [T, hidden]; the logits that it wants."""
        batch.sums = torch.stack([hidden[start:stop].sum(0, dtype=torch.float32) for start, stop in batch.pools])
        if not len(batch.logit_rows):
            return self.no_logits()
        logits = self.head(hidden.index_select(0, batch.logit_rows))
        return logits.float() if self.device.type == "cpu" else logits

    def no_logits(self) -> Tensor:
        """What a step returns that wanted none, [0, vocabulary]."""
        dtype = torch.float32 if self.device.type == "cpu" else self.dtype
        return torch.empty(0, self.config.vocab_size, dtype=dtype, device=self.device)

    @property
    def weight_bytes(self) -> int:
        """What the weights take, in every layout that is kept of them."""
        projections = [getattr(layer, name) for layer in self.layers for name in ("qkv", "output", "gate_up", "down")]
        norms = [getattr(layer, name) for layer in self.layers for name in ("attention_norm", "qk_norm", "mlp_norm")]
        tensors = [self.embedding, *(norm.weight for norm in [self.norm, *norms] if norm is not None)]
        tensors += [tensor for layer in [self.head, *projections] for tensor in layer.tensors()]
        return sum(tensor.numel() * tensor.itemsize for tensor in {id(tensor): tensor for tensor in tensors}.values())

    def parameters(self) -> dict[str, Tensor]:
        """Where each tensor of a checkpoint goes: its name and the view to copy it into, before `seal`."""
        names = self.config.architecture.names
        found = {f"{names.embedding}.weight": self.embedding, f"{names.norm}.weight": self.norm.weight}
        if not self.config.tied_embeddings:
            found[f"{names.head}.weight"] = self.head.weight
        for layer in self.layers:
            found.update(self._layer_parameters(layer))
        return found

    def _layer_parameters(self, layer: Layer) -> Iterator[tuple[str, Tensor]]:
        names, config = self.config.architecture.names, self.config
        prefix = names.layer.format(layer.index)
        yield f"{prefix}{names.attention_norm}.weight", layer.attention_norm.weight
        yield f"{prefix}{names.mlp_norm}.weight", layer.mlp_norm.weight
        if layer.qk_norm is not None:
            yield f"{prefix}{names.q_norm}.weight", layer.qk_norm.queries
            yield f"{prefix}{names.k_norm}.weight", layer.qk_norm.keys
        head_rows = [heads * config.head_dim for heads in (config.num_heads, *[config.num_kv_heads] * 2)]
        for pieces, rows, merged in (
            (names.qkv, head_rows, layer.qkv),
            (names.gate_up, [config.intermediate_size] * 2, layer.gate_up),
            ((names.output,), [config.hidden_size], layer.output),
            ((names.down,), [config.hidden_size], layer.down),
        ):
            yield from _pieces(prefix, pieces, rows, merged)

    def seal(self, transform: Transform | None = None) -> Decoder:
        """Bring the loaded weights into the layout to compute with, layer by layer.

        transform: asked for every projection by name (qkv, output, gate_up, down, head); a layer that it gives
        instead of the loaded one is taken as it is.
        """
        small = self.parameter_count * self.dtype.itemsize <= SMALL_MODEL
        for layer in self.layers:
            layer.seal(small, transform)
        if small or not self.config.tied_embeddings:
            self.head = _sealed("head", self.head, small, transform)
        elif transform is not None:
            self.head = transform("head", self.head)
        self.step = CompiledStep.of(self)
        return self


def _known_ids(batch: Batch) -> Tensor:
    """The batch's tokens, those that only the device knows looked up there."""
    ids = batch.token_ids
    if batch.device is None:
        return ids
    return torch.where(ids < 0, batch.device.last.index_select(0, (-1 - ids).clamp_(min=0)), ids)


def _sealed(name: str, loaded: Linear, keep_plain: bool, transform: Transform | None) -> Linear:
    given = transform(name, loaded) if transform else loaded
    return loaded.seal(keep_plain) if given is loaded else given


def _can_fuse(device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def _pieces(
    prefix: str, names: tuple[str, ...], rows: list[int], layer: Linear
) -> Iterator[tuple[str, Tensor]]:
    """Names and row ranges of a layer that checkpoints store in several pieces, or merged as here."""
    bounds = [0, *accumulate(rows)] if len(names) > 1 else [0, sum(rows)]
    for name, (start, stop) in zip(names, pairwise(bounds), strict=True):
        yield f"{prefix}{name}.weight", layer.weight[start:stop]
        if layer.bias is not None:
            yield f"{prefix}{name}.bias", layer.bias[start:stop]

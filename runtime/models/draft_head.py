"""Heads that draft from the hidden states of their target: EAGLE, EAGLE-3, and multi-token prediction layers.

A head's input for a token is the embedding of the next token, and the hidden state of this one. The state comes from
the target, or from the head itself in a chain.
After EAGLE-3 (Li et al., 2025, arXiv 2503.01840), EAGLE (2024, arXiv 2401.15077) and DeepSeek-V3 (2024, arXiv
2412.19437).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..attention.backend_protocols import AttentionBackend
from ..layers.linear_layers import Linear
from ..layers.rotary_embedding import RotaryEmbedding
from ..step.step_batch import StepBatch
from .decoder import Decoder
from .layer_executors import claim_experts
from .reference.reference_attention import ReferenceAttention
from .reference.reference_block import ReferenceBlock, normed
from .reference.reference_mixer import ReferenceStep
from .reference.reference_module import ReferenceModule
from .spec.model_spec import ModelSpec, NormSpec
from .spec.weight_targets import WeightTarget, matrix, norm_for, norm_places, weight_of

Kind = Literal["EAGLE", "EAGLE-3", "MTP"]


@dataclass(frozen=True, slots=True)
class DraftHeadNames:
    """Checkpoint names of the parts of a head, in addition to its layer's."""

    fc: str = "fc"
    embedding_norm: str = ""
    hidden_norm: str = "layers.0.hidden_norm"
    norm: str = "norm"
    head: str = "lm_head"
    embedding: str = "embed_tokens"


@dataclass(frozen=True, slots=True)
class DraftHeadSpec:
    """model: one layer, and the tokens that the head can draft.

    target_hidden: width of the target's states.  layers: the target's layers whose input states are kept; empty: the
        last states.
    embeds, scores: the head has its own embedding, and its own output matrix; otherwise they are the target's.
    maps: its vocabulary is a subset of the target's, given by a list.  normed_residual: the residual that attention
        adds to is the normed state.
    """

    kind: Kind
    model: ModelSpec
    target_hidden: int
    layers: tuple[int, ...]
    names: DraftHeadNames
    fc_bias: bool = False
    embeds: bool = False
    scores: bool = False
    maps: bool = False
    normed_residual: bool = False


class DraftHead(ReferenceModule):
    """Weights are allocated empty; fetch those of `places`, then call `seal` once.

    ids: int64 [tokens of the head], the target's token id of each; None: the same.
    """

    def __init__(self, spec: DraftHeadSpec, target: Decoder, dtype: torch.dtype, device: torch.device) -> None:
        self.spec, self.config, self.target, self.dtype, self.device = spec, spec.model, target, dtype, device
        hidden, norm = spec.model.hidden_size, spec.model.norm
        self.block = ReferenceBlock(spec.model.layers[0], spec.model.names, 0, hidden, dtype, device)
        inputs = len(spec.layers) * spec.target_hidden if spec.layers else hidden + spec.target_hidden
        if spec.kind == "EAGLE-3":
            self._widen(hidden)
        self.fc = matrix(hidden, inputs, spec.fc_bias, False, dtype, device)
        own = NormSpec(spec.model.norm.eps) if spec.model.norm else None
        self.embedding_norm = norm_for(own if spec.kind == "MTP" else None, hidden, device)
        self.hidden_norm = norm_for(None if spec.kind == "EAGLE" else own, hidden, device)
        self.norm = norm_for(norm if spec.kind != "EAGLE" else None, hidden, device)
        self.table = torch.empty(target.config.vocab_size, hidden, dtype=dtype, device=device) if spec.embeds else None
        self.product = Linear.empty(spec.model.vocab_size, hidden, False, dtype, device) if spec.scores else None
        self.ids = torch.arange(spec.model.vocab_size, device=device) if spec.maps else None
        self.rotaries = {rope: RotaryEmbedding(rope, dtype, device, 64) for rope in spec.model.ropes}
        self.parameter_count = sum(place.target.numel() for place in self.places())

    def _widen(self, hidden: int) -> None:
        """Queries, keys and values are projected from embedding and state, concatenated."""
        output = self.block.attention.output
        self.block.mixer = ReferenceAttention(
            self.block.layer.attention, self.config.names, 0, 2 * hidden, self.dtype, self.device
        )
        self.block.attention.output = output

    def places(self) -> Iterator[WeightTarget]:
        """Where the checkpoint's tensors go. Its projections are always dense: quantized ones are restored."""
        names, part = self.spec.names, NormSpec(1e-6)
        norms = (
            (names.embedding_norm, self.embedding_norm),
            (names.hidden_norm, self.hidden_norm),
            (names.norm, self.norm),
        )
        for place in (*self.block.places(), *weight_of(names.fc, self.fc)):
            yield place._replace(layer=None)
        for name, norm in norms:
            yield from norm_places(name, part, norm)
        if self.table is not None:
            yield WeightTarget(f"{names.embedding}.weight", self.table)
        if self.product is not None:
            yield WeightTarget(f"{names.head}.weight", self.product.weight)

    def seal(self) -> DraftHead:
        """Bring the loaded weights into the layout to compute with."""
        self.block.seal(True, None)
        claim_experts(self.block)
        for norm in (self.embedding_norm, self.hidden_norm, self.norm):
            if norm is not None:
                norm.seal()
        self.fc = self.fc.seal()
        self.product = self.product and self.product.seal()
        return self

    @property
    def weight_bytes(self) -> int:
        memory = {each.data_ptr(): each for each in (tensor.untyped_storage() for tensor in self.tensors())}
        return sum(each.nbytes() for each in memory.values())

    @torch.inference_mode()
    def forward(self, batch: StepBatch, attention: AttentionBackend, states: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [R, tokens of the head], float32, and the states [R, hidden] from which a chain continues, of the
        `logit_rows`.

        The batch's tokens are the ones that follow the tokens of `states` [T, ...]. These states are the target's, or
        the head's own.
        """
        longest = max(batch.context_lens)
        step = ReferenceStep(
            batch, attention, {rope: rotary.gather(batch.positions, longest) for rope, rotary in self.rotaries.items()}
        )
        embedded = self._embedded(batch)
        x = self._wide(embedded, states, step) if self.spec.kind == "EAGLE-3" else self._narrow(embedded, states, step)
        y = normed(self.norm, x)
        if not len(y):
            return torch.empty(0, self.config.vocab_size), y
        logits = self.target.head(y) if self.product is None else self.product(y)
        return logits.float(), y if self.spec.kind == "MTP" else x

    def _embedded(self, batch: StepBatch) -> Tensor:
        if self.table is None:
            return self.target.embedding(batch.token_ids, batch.positions)
        return self.table.index_select(0, batch.token_ids)

    def _narrow(self, embedded: Tensor, states: Tensor, step: ReferenceStep) -> Tensor:
        x = self.fc(torch.cat([normed(self.embedding_norm, embedded), normed(self.hidden_norm, states)], 1))
        if not len(step.batch.logit_rows):
            self.block.store(x, step)
            return x[:0]
        return self.block.forward(x, step, step.batch.logit_rows)

    def _wide(self, embedded: Tensor, states: Tensor, step: ReferenceStep) -> Tensor:
        block, rows = self.block, step.batch.logit_rows
        x = self.fc(states) if states.shape[1] != self.config.hidden_size else states
        y = normed(self.hidden_norm, x)
        assert block.mixer is not None and block.ffn is not None
        mixed = block.mixer.attend(torch.cat([normed(block.before_mixer, embedded), y], 1), step).index_select(0, rows)
        x = (y if self.spec.normed_residual else x).index_select(0, rows)
        x = block.attention.output.added_to(x, mixed)
        return block.dense.down.added_to(x, block.dense.inner(normed(block.before_ffn, x)))

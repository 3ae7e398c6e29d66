"""Checkpoint names of the parts of a decoder, and the order of merged rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

OF_MLX = ("weight", "scales", "biases")
Order = Literal["rows", "heads", "groups", "quarters", "pairs"]


@dataclass(frozen=True, slots=True)
class MergedProjections:
    """Several projections in one tensor.

    order: "rows", one whole projection after the other (q, k, v; gate, up); "heads", [q, k, v] of one head after the
        other; "groups", [its query heads, k, v] of one key head after the other; "quarters", [q, v, k] of one quarter
        of the heads after the other; "pairs", rows of gate and up in turn.
    """

    name: str
    order: Order = "rows"


@dataclass(frozen=True, slots=True)
class StackedExpertTensor:
    """A tensor of the files with the rows of all experts, [experts, ...].

    name: after `TensorNames.layer`.  parts: one expert's parts, {} stands for its number: equal cuts of the rows.
    """

    name: str
    parts: tuple[str, ...]


def stacks(gate_up: str, down: str, expert: str = "mlp.experts.{}.") -> tuple[StackedExpertTensor, ...]:
    """gate_up, down: [experts, outputs, inputs], gate above up.  expert: how the names of one begin."""
    both = (f"{expert}gate_proj.weight", f"{expert}up_proj.weight")
    return StackedExpertTensor(gate_up, both), StackedExpertTensor(down, (f"{expert}down_proj.weight",))


@dataclass(frozen=True, slots=True)
class ExpertTensorNames:
    """Checkpoint names of the parts of a mixture of experts; those of one expert have {} for its number.

    shared_gate_up: gate and up of the shared network, if they are one tensor.  switch: the projection to its weight.
    narrow, widen: the projections to the experts' latent, and back.
    correction_row: the correction is stored as [1, experts].
    stacks: other tensors that the files may hold in place of the experts' own.  transposed: experts' matrices are
        stored as [in, out].
    """

    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    correction_row: bool = False
    gate: str = "mlp.experts.{}.gate_proj"
    up: str = "mlp.experts.{}.up_proj"
    gate_up: MergedProjections | None = None
    down: str = "mlp.experts.{}.down_proj"
    shared_gate: str = "mlp.shared_experts.gate_proj"
    shared_up: str = "mlp.shared_experts.up_proj"
    shared_gate_up: MergedProjections | None = None
    shared_down: str = "mlp.shared_experts.down_proj"
    switch: str = "mlp.shared_expert_gate"
    narrow: str = "mlp.fc1_latent_proj"
    widen: str = "mlp.fc2_latent_proj"
    stacks: tuple[StackedExpertTensor, ...] = stacks("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    transposed: bool = False

    def all_stacks(self) -> tuple[StackedExpertTensor, ...]:
        """These, and MLX's tensors of each matrix of all experts: weights, and the scales and biases of quantized
        ones.
        """
        matrices = (
            (("gate_proj", self.gate), ("up_proj", self.up), ("down_proj", self.down)) if self.gate_up is None else ()
        )
        named = [(name, *matrix.partition("experts.{}")) for name, matrix in matrices]
        mlx = [
            StackedExpertTensor(f"{before}switch_mlp.{name}.{kind}", (f"{before}{expert}{after}.{kind}",))
            for name, before, expert, after in named
            if expert
            for kind in OF_MLX
        ]
        return (*self.stacks, *mlx)


@dataclass(frozen=True, slots=True)
class ShortConvTensorNames:
    """Checkpoint names of the parts of a short convolution."""

    into: str = "conv.in_proj"
    kernel: str = "conv.conv"
    output: str = "conv.out_proj"


@dataclass(frozen=True, slots=True)
class DeltaNetTensorNames:
    """Checkpoint names of the parts of a gated delta net, after `prefix`.

    inputs, rates: tensors, each with a letter for each group of its rows: q, k, v, the gate z; b for beta, a for the
        decay.
    by_head: the inputs and rates in which all that belongs to one key head is adjacent.
    convolution: of q, k and v, one tensor or three.  decay, gate: from a and z to all channels, in KDA.
    """

    prefix: str = "linear_attn."
    inputs: tuple[tuple[str, str], ...] = (("in_proj_qkv", "qkv"), ("in_proj_z", "z"))
    rates: tuple[tuple[str, str], ...] = (("in_proj_b", "b"), ("in_proj_a", "a"))
    by_head: tuple[str, ...] = ()
    convolution: tuple[str, ...] = ("conv1d",)
    decay: str = "f_b_proj"
    gate: str = "g_b_proj"
    norm: str = "norm"
    output: str = "out_proj"


@dataclass(frozen=True, slots=True)
class LatentAttentionTensorNames:
    """Checkpoint names of the parts of latent attention, in addition to those of all attention.

    query_down, query_up: to the queries' latent and from it.  down: to the latent and the rotated key.  up: from the
        latent to keys and values.
    halves: two tensors that the files may hold instead of `up`: to keys, [heads * rank, numbers of a key], and to
        values, [heads * numbers of a value, rank].  index: prefix of the names of an indexer's parts.
    """

    query_down: str = "self_attn.q_a_proj"
    query_norm: str = "self_attn.q_a_layernorm"
    query_up: str = "self_attn.q_b_proj"
    down: str = "self_attn.kv_a_proj_with_mqa"
    norm: str = "self_attn.kv_a_layernorm"
    up: str = "self_attn.kv_b_proj"
    halves: tuple[str, str] | None = None
    index: str = "self_attn.indexer."


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Llama's names; a family passes those that differ. Those of a layer's parts come after `layer`.

    prefixes: (begin, instead): a tensor whose name begins so is looked up under the other name, first match first.
    mamba: prefix of the names of such a mixer's parts, which are the same in all families.
    ignored: regular expressions of whole names of tensors that are not used here, in addition to those in `loading`.
    transposed: matrices of the layers are stored as [in, out].
    """

    embedding: str = "model.embed_tokens"
    embed_norm: str = "model.embed_norm"
    positions: str = "model.embed_positions"
    project_in: str = "model.project_in"
    project_out: str = "model.project_out"
    norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers.{}."
    before_mixer: str = "input_layernorm"
    after_mixer: str = "post_attention_layernorm"
    before_ffn: str = "post_attention_layernorm"
    after_ffn: str = "post_feedforward_layernorm"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    qkv: MergedProjections | None = None
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    output: str = "self_attn.o_proj"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    gate_up: MergedProjections | None = None
    down: str = "mlp.down_proj"
    activation: str = "mlp.act_fn"
    scalar: str = "layer_scalar"
    experts: ExpertTensorNames = ExpertTensorNames()
    conv: ShortConvTensorNames = ShortConvTensorNames()
    delta: DeltaNetTensorNames = DeltaNetTensorNames()
    mamba: str = "mamba."
    latent: LatentAttentionTensorNames = LatentAttentionTensorNames()
    prefixes: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    transposed: bool = False


def expert_names(names: TensorNames, index: int) -> TensorNames:
    """Of one expert's network, after `TensorNames.layer`."""
    own = names.experts
    both = None if own.gate_up is None else replace(own.gate_up, name=own.gate_up.name.format(index))
    return TensorNames(
        gate=own.gate.format(index),
        up=own.up.format(index),
        gate_up=both,
        down=own.down.format(index),
        transposed=own.transposed,
    )


def shared_expert_names(names: TensorNames) -> TensorNames:
    """Of the network that every token goes through."""
    own = names.experts
    return TensorNames(
        gate=own.shared_gate,
        up=own.shared_up,
        gate_up=own.shared_gate_up,
        down=own.shared_down,
        transposed=names.transposed,
    )

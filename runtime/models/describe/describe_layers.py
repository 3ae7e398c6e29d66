"""The parts of a layer in one line, for people."""

from __future__ import annotations

from collections.abc import Iterator

from ...attention.attention_layout import LayerAttention
from ..spec.latent_attention_spec import LatentAttentionSpec
from ..spec.model_spec import (
    AttentionSpec,
    ExpertsSpec,
    Feedforward,
    LayerNorms,
    LayerSpec,
    Mixer,
    NormSpec,
    ParallelMixersSpec,
    PlainFFNSpec,
    QkNormSpec,
    ShortConvSpec,
)
from ..spec.recurrent_spec import DeltaNetSpec, Mamba1Spec, Mamba2Spec
from ..spec.sparse_attention_spec import SparseAttentionSpec

OVER = {"head": "QK-norm per head", "each": "QK-norms of each head", "all": "QK-norm over all heads"}
SIDES: dict[tuple[bool, ...], str] = {
    (True, False, True, False): "before",
    (False, True, False, True): "after",
    (True, True, True, True): "before and after",
}  # of mixer and feedforward network


def describe_layer(layer: LayerSpec) -> str:
    """attention 8 heads, 4 kv, dim 256, window 1024, QK-norm per head; gated gelu_tanh 10240; norms before and after"""
    branches = [*([_mixer(layer.mixer)] if layer.mixer else []), *([_feedforward(layer.ffn)] if layer.ffn else [])]
    return "; ".join([*branches, *_sums(layer)])


def _mixer(part: Mixer) -> str:
    if isinstance(part, ParallelMixersSpec):
        return " in parallel with ".join(map(_mixer, part.mixers))
    if isinstance(part, LatentAttentionSpec):
        return ", ".join(_latent(part))
    if isinstance(part, SparseAttentionSpec):
        return ", ".join(_sparse(part))
    if isinstance(part, DeltaNetSpec):
        return ", ".join(_delta(part))
    if isinstance(part, Mamba2Spec):
        return f"Mamba 2 {part.heads} heads, {part.groups} groups, dim {part.dim}, states of {part.size}"
    if isinstance(part, Mamba1Spec):
        return f"Mamba {part.inner} channels, states of {part.size}"
    if isinstance(part, ShortConvSpec):
        return f"short convolution of {part.width} tokens{', biases' if part.bias else ''}"
    return ", ".join(_attention(part))


def _latent(part: LatentAttentionSpec) -> Iterator[str]:
    yield f"latent attention {part.heads} heads"
    yield f"rows of {part.rank} + {part.turned}"
    if part.query_rank is not None:
        yield f"queries of {part.query_rank}"
    yield f"dim {part.dim} + {part.turned}"
    yield f"values {part.value_dim}"
    yield from _positions(part)
    if part.temperature is not None:
        yield "queries scaled by position"
    if part.share is not None:
        yield f"of one part in {part.share.ranks} of a step's rows"
    if part.indexer is not None:
        yield (
            f"{part.indexer.most:,} tokens chosen by "
            f"{'the layer before' if part.indexer.shared else f'{part.indexer.heads} heads of {part.indexer.dim}'}"
        )


def _sparse(part: SparseAttentionSpec) -> Iterator[str]:
    yield f"sparse attention {part.heads} heads"
    if part.kv_heads != part.heads:
        yield f"{part.kv_heads} kv"
    yield f"dim {part.dim}"
    yield f"{part.length} tokens compressed every {part.stride}"
    yield f"{part.most} blocks of {part.block} tokens chosen"
    yield f"window {part.window}"
    yield from _positions(part)


def _delta(part: DeltaNetSpec) -> Iterator[str]:
    yield f"{'gated delta net' if part.rank is None else 'KDA'} {part.heads} heads"
    if part.key_heads != part.heads:
        yield f"{part.key_heads} of keys"
    yield f"dim {part.dim}" if part.value_dim == part.dim else f"dim {part.dim}, values {part.value_dim}"


def describe_attention(part: LayerAttention) -> str:
    """For a layer of which only the attention is known."""
    return ", ".join(
        _attention(
            AttentionSpec(
                part.query_heads,
                part.kv_heads,
                part.key_dim,
                part.scale,
                part.value_dim,
                window=part.window,
                chunk=part.chunk,
                softcap=part.softcap,
                alibi=part.alibi,
                source=part.source,
            ),
            known=False,
        )
    )


def _attention(part: AttentionSpec, known: bool = True) -> Iterator[str]:
    yield f"attention {part.heads} heads"
    if part.kv_heads != part.heads:
        yield f"{part.kv_heads} kv"
    yield f"dim {part.dim}" if part.values == part.dim else f"dim {part.dim}, values {part.values}"
    if known:
        yield from _positions(part)
    for name in ("window", "chunk", "softcap", "clip"):
        if (value := getattr(part, name)) is not None:
            yield f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
    if part.norm is not None:
        yield _head_norm(part.norm)
    yield from _extras(part)


def _positions(part: AttentionSpec | LatentAttentionSpec | SparseAttentionSpec) -> Iterator[str]:
    rope = part.rope
    if rope is None:
        yield (
            "no RoPE"
            if isinstance(part, LatentAttentionSpec | SparseAttentionSpec) or part.alibi is None
            else "ALiBi positions"
        )
        return
    if rope.dim != rope.width:
        yield f"RoPE on {rope.dim}"
    if rope.kind != "default":
        yield f"RoPE {rope.kind}"
    if rope.interleaved:
        yield "RoPE interleaved"


def _head_norm(part: QkNormSpec) -> str:
    kind = "" if part.norm.kind == "rms" else "layer "
    return f"{kind}{OVER[part.over]}{' after RoPE' if part.after else ''}"


def _extras(part: AttentionSpec) -> Iterator[str]:
    if part.bias or part.out_bias:
        yield "biases" if part.bias and part.out_bias else "bias of q, k, v" if part.bias else "bias of the output"
    if part.value_norm_eps is not None:
        yield "norm of values"
    if part.temperature is not None:
        yield "queries scaled by position"
    if part.gate:
        yield "gated heads"
    if part.sinks:
        yield "attention sinks"
    if part.value_is_key:
        yield "keys are also values"
    if part.source is not None:
        yield f"reads layer {part.source}"


def _feedforward(part: Feedforward) -> str:
    if isinstance(part, ExpertsSpec):
        return ", ".join(_experts(part))
    kind = "plain" if isinstance(part, PlainFFNSpec) else "gated" if part.limit is None else "gated, clamped"
    return f"{kind} {part.activation} {part.inner}{', biases' if part.bias else ''}"


def _experts(part: ExpertsSpec) -> Iterator[str]:
    yield f"{part.top_k} of {part.count} experts {_feedforward(part.expert)}"
    yield f"{part.router.score} router"
    if part.router.groups > 1:
        yield f"{part.router.kept_groups} of {part.router.groups} groups"
    if part.shared is not None:
        yield f"shared {_feedforward(part.shared)}"


def _sums(layer: LayerSpec) -> Iterator[str]:
    yield _norms(layer.norms)
    if layer.branch != 1:
        yield f"branches times {layer.branch:g}"
    if layer.scalar:
        yield "layer times a learned number"


def _norms(norms: LayerNorms) -> str:
    four = (norms.before_mixer, norms.after_mixer, norms.before_ffn, norms.after_ffn)
    kinds = sorted({_kind(norm) for norm in four if norm is not None})
    where = SIDES.get(tuple(norm is not None for norm in four))
    if norms.parallel:
        where = "in parallel" if norms.before_ffn is None else "in parallel, one each"
    elif norms.of_sum:
        where = "after the addition"
    if where is None:
        names = ("before_mixer", "after_mixer", "before_ffn", "after_ffn")
        where = ", ".join(name for name, norm in zip(names, four, strict=True) if norm is not None)
    return f"{' and '.join(kinds)} {where}" if kinds else "no norms"


def _kind(norm: NormSpec) -> str:
    kind = "norms" if norm.kind == "rms" else "layer norms"
    return f"{kind} without weights" if not norm.weight else kind

"""Tensor parallelism: a rank's share of a model, which is a narrower model, and its parts of the checkpoint.

Queries, keys, values and states are cut by heads, networks and each of the experts by their inner width, the head by
the vocabulary; norms, routers, the rows of latent attention (with `TensorParallelSplit.rows` all of that) and the
embedding are whole on every rank. After Megatron-LM (Shoeybi et al., 2019, arXiv 1909.08053).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ...models.reference.reference_attention import rows_in_file
from ...models.spec.latent_attention_spec import LatentAttentionSpec
from ...models.spec.model_spec import (
    AttentionSpec,
    ExpertsSpec,
    Feedforward,
    GatedFFNSpec,
    LayerNorms,
    LayerSpec,
    Mixer,
    ModelSpec,
    NormSpec,
    PlainFFNSpec,
    QkNormSpec,
    RouterSpec,
    attention_of,
)
from ...models.spec.tensor_names import TensorNames, expert_names, shared_expert_names
from ...models.spec.unsupported_fields import unsupported_fields
from ...step.rank_row_share import RankRowShare
from ..ep.expert_parallel_split import ExpertParallelSplit, narrowed_expert_parallel, require_mixtures
from . import recurrent_split
from .recurrent_split import Recurrent
from .tensor_slices import TensorParallelSplit, TensorSlice, numbers

Network = TypeVar("Network", bound=GatedFFNSpec | PlainFFNSpec)

SPLIT: dict[type, set[str]] = {  # what of each part is cut, or is whole on every rank
    LayerSpec: {"norms", "mixer", "ffn", "branch", "scalar"},
    LayerNorms: {"before_mixer", "after_mixer", "before_ffn", "after_ffn", "parallel", "of_sum"},
    AttentionSpec: {
        "heads",
        "kv_heads",
        "dim",
        "scale",
        "value_dim",
        "rope",
        "bias",
        "out_bias",
        "norm",
        "value_norm_eps",
        "clip",
        "temperature",
        "window",
        "chunk",
        "softcap",
        "alibi",
        "sinks",
        "value_is_key",
        "source",
        "gate",
        "value_scale",
    },
    QkNormSpec: {"norm", "over", "after"},
    GatedFFNSpec: {"inner", "activation", "bias", "limit", "scale", "out_scale"},
    PlainFFNSpec: {"inner", "activation", "bias"},
    LatentAttentionSpec: {
        "heads",
        "rank",
        "dim",
        "turned",
        "value_dim",
        "scale",
        "norm",
        "rope",
        "query_rank",
        "bias",
        "out_bias",
        "temperature",
        "indexer",
        "share",
    },
    NormSpec: {"eps", "kind", "offset", "weight", "bias"},
    ExpertsSpec: {"count", "top_k", "expert", "router", "weighs_input", "shared", "switched", "latent", "latent_bias"},
    RouterSpec: {
        "score",
        "best_first",
        "bias",
        "correction",
        "groups",
        "kept_groups",
        "group_score",
        "outside",
        "normalise",
        "floor",
        "scale",
        "jitter",
    },
} | recurrent_split.KNOWN


def refusal(model: ModelSpec, ranks: int, whole: ExpertParallelSplit | None = None, rows: bool = False) -> str | None:
    """Why a model cannot be shared out among so many ranks, for people; None: it can.

    whole, rows: see `TensorParallelSplit`.
    """
    if model.per_layer is not None:
        return "embeddings of each layer's own are not shared out among ranks"
    if whole is not None and (why := require_mixtures(model)) is not None:
        return why
    if rows and not any(isinstance(layer.mixer, LatentAttentionSpec) for layer in model.layers):
        return "no layer has latent attention, whose rows could be shared out: take latent_attention='heads'"
    return next(
        (
            f"layer {index}: {why}"
            for index, layer in enumerate(model.layers)
            for why in _reasons(layer, model.names, ranks, whole, rows)
        ),
        None,
    )


def _reasons(
    layer: LayerSpec, names: TensorNames, ranks: int, whole: ExpertParallelSplit | None, rows: bool
) -> Iterator[str]:
    yield from unsupported_fields(layer, SPLIT, one=True)
    part = layer.mixer
    if rows and isinstance(attends := attention_of(part), LatentAttentionSpec) and attends.indexer is not None:
        yield (
            "an indexer chooses what its queries attend to, which is not shared out by rows: take "
            "latent_attention='heads'"
        )
    elif rows and attends is not None and not isinstance(attends, LatentAttentionSpec):
        yield (
            "its attention has no latents, and is not shared out by rows as that of others: take "
            "latent_attention='heads'"
        )
    if (
        isinstance(part, AttentionSpec | LatentAttentionSpec)
        and part.heads % ranks
        and not (rows and isinstance(part, LatentAttentionSpec))
    ):
        yield f"{part.heads} query heads cannot be shared out among {ranks} ranks: take a number that divides them"
    if isinstance(part, Recurrent):
        yield from (
            f"{what}: {count}, which cannot be shared out among {ranks} ranks: take a number that divides them"
            for what, count in recurrent_split.recurrent_refusal(part).items()
            if count % ranks
        )
    if isinstance(part, AttentionSpec):
        if names.qkv is not None and (part.gate or part.source is not None or part.value_is_key):
            yield "one tensor for queries, keys and values, of which not all are there"
        if part.kv_heads % ranks and ranks % part.kv_heads:
            yield f"{part.kv_heads} heads of keys and values over {ranks} ranks: one number must divide the other"
        if part.norm is not None and part.norm.over != "head":
            yield "queries and keys are normed over several heads, which are on several ranks"
    if (
        whole is not None
        and isinstance(layer.ffn, ExpertsSpec)
        and (why := whole.refusal(layer.ffn, ranks)) is not None
    ):
        yield why
    for inner in _widths(layer.ffn, whole is not None):
        if inner % ranks:
            yield f"an inner width of {inner} cannot be shared out among {ranks} ranks: take a number that divides it"


def _widths(ffn: Feedforward | None, whole: bool) -> list[int]:
    """Of the networks that are cut."""
    if isinstance(ffn, ExpertsSpec):
        return [part.inner for part in (None if whole else ffn.expert, ffn.shared) if part is not None]
    return [] if ffn is None else [ffn.inner]


def narrowed_model(model: ModelSpec, split: TensorParallelSplit) -> ModelSpec:
    """The rank's own model.

    Its products after attention and networks return parts of sums, its head the logits of some tokens.
    """
    rows = split.tokens(model.vocab_size)
    return replace(
        model, layers=tuple(_narrow_layer(layer, split) for layer in model.layers), head_rows=(rows.start, rows.stop)
    )


def _narrow_layer(layer: LayerSpec, split: TensorParallelSplit) -> LayerSpec:
    mixer, ffn = layer.mixer, layer.ffn
    if isinstance(mixer, LatentAttentionSpec):
        mixer = (
            replace(mixer, share=RankRowShare(split.rank, split.ranks))
            if split.rows
            else replace(mixer, heads=len(split.of(mixer.heads)))
        )
    elif isinstance(mixer, AttentionSpec):
        mixer = _narrow(mixer, split)
    elif isinstance(mixer, Recurrent):
        mixer = recurrent_split.narrow(mixer, split)
    if isinstance(ffn, ExpertsSpec):
        ffn = replace(ffn, shared=ffn.shared and _narrow_network(ffn.shared, split))
        ffn = (
            narrowed_expert_parallel(ffn, split.whole, split.rank, split.ranks)
            if split.whole is not None
            else replace(ffn, expert=_narrow_network(ffn.expert, split))
        )
    elif ffn is not None:
        ffn = _narrow_network(ffn, split)
    return replace(layer, mixer=mixer, ffn=ffn)


def _narrow_network(part: Network, split: TensorParallelSplit) -> Network:
    return replace(part, inner=len(split.of(part.inner)))


def _narrow(part: AttentionSpec, split: TensorParallelSplit) -> AttentionSpec:
    heads = split.of(part.heads)
    alibi = None if part.alibi is None else part.alibi[heads.start : heads.stop]
    return replace(part, heads=len(heads), kv_heads=len(split.kv_heads(part.kv_heads)), alibi=alibi)


def tensor_slices(model: ModelSpec, split: TensorParallelSplit) -> dict[str, TensorSlice]:
    """By the name of a tensor in the model, what a rank keeps of it; others are kept whole."""
    found = dict(_head_cuts(model, split))
    for index, layer in enumerate(model.layers):
        prefix = model.names.layer.format(index)
        found |= {
            prefix + name: cut
            for name, cut in (*_mixer_cuts(layer.mixer, model.names, split), *_ffn_cuts(layer.ffn, model.names, split))
        }
    return found


def _mixer_cuts(
    part: Mixer | None, names: TensorNames, split: TensorParallelSplit
) -> Iterator[tuple[str, TensorSlice]]:
    if isinstance(part, AttentionSpec):
        yield from _attention_cuts(part, names, split)
    elif isinstance(part, LatentAttentionSpec) and not split.rows:
        yield from _latent_cuts(part, names, split)
    elif isinstance(part, Recurrent):
        yield from recurrent_split.pieces(part, names, split)


def _head_cuts(model: ModelSpec, split: TensorParallelSplit) -> Iterator[tuple[str, TensorSlice]]:
    rows, head = np.asarray(split.tokens(model.vocab_size)), model.names.head
    if not model.tied:
        yield f"{head}.weight", TensorSlice(0, model.vocab_size, rows)
    yield f"{head}.bias", TensorSlice(0, model.vocab_size, rows)


def _attention_cuts(
    part: AttentionSpec, names: TensorNames, split: TensorParallelSplit
) -> Iterator[tuple[str, TensorSlice]]:
    heads, kv_heads = split.of(part.heads), split.kv_heads(part.kv_heads)
    if names.qkv is not None:
        yield from _outputs(names.qkv.name, sum(part.rows), _merged(part, names, split), names)
    else:
        query = part.dim * (2 if part.gate else 1)
        yield from _outputs(names.q, part.heads * query, numbers(heads, query), names)
        yield from _outputs(names.k, part.kv_heads * part.dim, numbers(kv_heads, part.dim), names)
        yield from _outputs(names.v, part.kv_heads * part.values, numbers(kv_heads, part.values), names)
    yield from _inputs(names.output, part.heads * part.values, numbers(heads, part.values), names)
    yield names.sinks, TensorSlice(0, part.heads, np.asarray(heads))


def _merged(part: AttentionSpec, names: TensorNames, split: TensorParallelSplit) -> np.ndarray:
    """Rows of a tensor of several projections that become the rank's own such tensor, in the order of that tensor."""
    assert names.qkv is not None
    own = _narrow(part, split)
    # turning is within a head
    plain, narrow = (rows_in_file(replace(each, rope=None), names.qkv.order) for each in (part, own))
    queries, keys, _ = part.rows
    heads, kv_heads = split.of(part.heads), split.kv_heads(part.kv_heads)
    chosen = [
        numbers(heads, part.dim),
        queries + numbers(kv_heads, part.dim),
        queries + keys + numbers(kv_heads, part.values),
    ]
    kept = np.empty(len(narrow), np.int64)
    kept[narrow] = plain[np.concatenate(chosen)]
    return kept


def _latent_cuts(
    part: LatentAttentionSpec, names: TensorNames, split: TensorParallelSplit
) -> Iterator[tuple[str, TensorSlice]]:
    """What leads to latents and their norms is whole on every rank, and so is the row of a token; an indexer too."""
    own, heads = names.latent, split.of(part.heads)
    widths = {(names.q if part.query_rank is None else own.query_up): part.dim + part.turned}
    widths |= (
        {own.up: part.dim + part.value_dim}
        if own.halves is None
        else dict(zip(own.halves, (part.rank, part.value_dim), strict=True))
    )
    for name, width in widths.items():
        yield f"{name}.weight", TensorSlice(0, part.heads * width, numbers(heads, width))
    yield (
        f"{names.output}.weight",
        TensorSlice(1, part.heads * part.value_dim, numbers(heads, part.value_dim), inputs=True),
    )


def _ffn_cuts(
    part: Feedforward | None, names: TensorNames, split: TensorParallelSplit
) -> Iterator[tuple[str, TensorSlice]]:
    if isinstance(part, ExpertsSpec):
        for index in range(0 if split.whole is not None else part.count):
            yield from _network_cuts(part.expert, expert_names(names, index), split)
        if part.shared is not None:
            yield from _network_cuts(part.shared, shared_expert_names(names), split)
    elif part is not None:
        yield from _network_cuts(part, names, split)


def _network_cuts(
    part: GatedFFNSpec | PlainFFNSpec, names: TensorNames, split: TensorParallelSplit
) -> Iterator[tuple[str, TensorSlice]]:
    inner = np.asarray(split.of(part.inner))
    if isinstance(part, GatedFFNSpec) and names.gate_up is not None:
        pairs = np.stack((2 * inner, 2 * inner + 1), 1).ravel()
        rows = pairs if names.gate_up.order == "pairs" else np.concatenate((inner, part.inner + inner))
        yield from _outputs(names.gate_up.name, 2 * part.inner, rows, names)
    else:
        yield from _outputs(names.up, part.inner, inner, names)
        yield from _outputs(names.gate, part.inner, inner, names)
    yield from _inputs(names.down, part.inner, inner, names)


def _outputs(name: str, count: int, rows: np.ndarray, names: TensorNames) -> Iterator[tuple[str, TensorSlice]]:
    yield f"{name}.weight", TensorSlice(1 if names.transposed else 0, count, rows)
    yield f"{name}.bias", TensorSlice(0, count, rows)


def _inputs(name: str, count: int, columns: np.ndarray, names: TensorNames) -> Iterator[tuple[str, TensorSlice]]:
    """The bias of such a product is whole: one rank adds it."""
    yield f"{name}.weight", TensorSlice(0 if names.transposed else 1, count, columns, inputs=True)

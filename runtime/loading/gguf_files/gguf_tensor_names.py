"""Maps the tensors of a GGUF file to names and layouts of the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import attrgetter

from ...errors import CheckpointError
from ...models.spec.json_fields import shown
from ...models.spec.model_spec import AttentionSpec, ExpertsSpec, LayerNorms, LayerSpec, ModelSpec, NormSpec, QkNormSpec
from ...models.spec.tensor_names import ExpertTensorNames, MergedProjections, StackedExpertTensor, TensorNames
from ..tensor_files.safetensors_header import StoredTensor
from . import gguf_recurrent_config
from .gguf_config import GGUFArchitecture

FACTORS = ("rope_freqs", "rope_factors_long", "rope_factors_short")  # of the rotation
UNUSED = re.compile(r"blk\.\d+\.attn_rot_embd\.weight")  # tables that are computed
WHOLE = {"token_embd": "embedding", "position_embd": "positions", "output_norm": "norm", "output": "head"}
IN_LAYER = {
    "attn_norm": "before_mixer",
    "post_attention_norm": "after_mixer",
    "ffn_norm": "before_ffn",
    "post_ffw_norm": "after_ffn",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_qkv": "qkv",
    "attn_output": "output",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "attn_sinks": "sinks",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
STACKED = {
    "ffn_gate_exps": "gate",
    "ffn_up_exps": "up",
    "ffn_down_exps": "down",
}  # [experts, out, in]; biases [experts, out]
OF_EXPERTS = {
    "ffn_gate_inp": "router",
    "exp_probs_b": "correction",
    "ffn_gate_shexp": "shared_gate",
    "ffn_up_shexp": "shared_up",
    "ffn_down_shexp": "shared_down",
    "ffn_gate_inp_shexp": "switch",
}
OF_MIXER = {  # other than attention over heads; what `TensorNames` calls them
    "attn_q_a": "latent.query_down",
    "attn_q_a_norm": "latent.query_norm",
    "attn_q_b": "latent.query_up",
    "attn_kv_a_mqa": "latent.down",
    "attn_kv_a_norm": "latent.norm",
    "attn_kv_b": "latent.up",
    "shortconv.in_proj": "conv.into",
    "shortconv.conv": "conv.kernel",
    "shortconv.out_proj": "conv.output",
}
HALVES = ("attn_k_b", "attn_v_b")  # [heads, rank, numbers of a key], [heads, numbers of a value, rank]
OF_LAYER = re.compile(r"blk\.(\d+)\.(\w+(?:\.\w+)?)\.(\w+)")
OF_MODEL = re.compile(r"(\w+)\.(\w+)")


def to_model_layout(tensor: StoredTensor) -> StoredTensor:
    """In the model's shape, of the same bytes.

    Some files omit the one row of the shared experts' gate. The up-projection of latents is stored by head, and the
    channels of a convolution are rows.
    """
    part, shape = tensor.name.removeprefix("blk.").partition(".")[2].removesuffix(".weight"), tensor.shape
    if part == "ffn_gate_inp_shexp" and len(shape) == 1:
        return tensor._replace(shape=[1, *shape])
    if part == "shortconv.conv" and len(shape) == 2:
        return tensor._replace(shape=[shape[0], 1, shape[1]])
    if part in HALVES and len(shape) == 3:
        return tensor._replace(shape=[shape[0] * shape[1], shape[2]])
    return tensor._replace(shape=gguf_recurrent_config.to_model_layout(part, shape))


def as_stored(model: ModelSpec, found: GGUFArchitecture, tensors: Iterable[StoredTensor]) -> ModelSpec:
    """The same model, its weights as a GGUF file holds them: their order of rows, what its norms add, what is
    merged."""
    there = {tensor.name for tensor in tensors}
    merged = "blk.0.attn_qkv.weight" in there and isinstance(model.layers[0].mixer, AttentionSpec)
    names = gguf_recurrent_config.names_in_file(replace(model.names, transposed=False, prefixes=()))
    if f"blk.0.{HALVES[0]}.weight" in there:
        names = replace(names, latent=replace(names.latent, halves=HALVES))
    if merged and names.qkv is None:
        names = replace(names, qkv=MergedProjections("self_attn.qkv_proj"))
    names = replace(names, q_norm=names.q_norm.removesuffix(".norms.{}"), k_norm=names.k_norm.removesuffix(".norms.{}"))
    if names.gate_up is not None and "blk.0.ffn_gate.weight" in there:
        names = replace(names, gate_up=None)
    names = replace(names, experts=_apart(names.experts))
    layers = tuple(_layer(layer, found) for layer in model.layers)
    return replace(model, layers=layers, names=names, norm=_norm(model.norm, found))


def _apart(names: ExpertTensorNames) -> ExpertTensorNames:
    """Gate and up in separate stacks, as [out, in]."""
    own = replace(names if names.gate_up is None else ExpertTensorNames(router=names.router), shared_gate_up=None)
    parts = {name: getattr(own, role) for name, role in STACKED.items()}
    stacks = tuple(
        StackedExpertTensor(f"{name}.{suffix}", (f"{part}.{suffix}",))
        for name, part in parts.items()
        for suffix in ("weight", "bias")
    )
    return replace(own, stacks=stacks)


def _layer(layer: LayerSpec, found: GGUFArchitecture) -> LayerSpec:
    norms = layer.norms
    around, ffn = (
        (_norm(norms.before_mixer, found), _norm(norms.after_mixer, found)),
        (_norm(norms.before_ffn, found), _norm(norms.after_ffn, found)),
    )
    mixer = _attention(layer.mixer, found) if isinstance(layer.mixer, AttentionSpec) else layer.mixer
    mixer = None if mixer is None else gguf_recurrent_config.mixer_in_file_order(mixer, found.tiled)
    return replace(layer, mixer=mixer, norms=LayerNorms(*around, *ffn, norms.parallel, norms.of_sum))


def _attention(part: AttentionSpec, found: GGUFArchitecture) -> AttentionSpec:
    rope = replace(part.rope, interleaved=True) if part.rope is not None and found.interleaved else part.rope
    heads = (
        None
        if part.norm is None
        else QkNormSpec(_norm(part.norm.norm, found) or part.norm.norm, part.norm.over, part.norm.after)
    )
    return replace(part, rope=rope, norm=heads)


def _norm(norm: NormSpec | None, found: GGUFArchitecture) -> NormSpec | None:
    return replace(norm, offset=norm.offset - 1) if norm is not None and found.raised else norm


def places_of(
    model: ModelSpec, tensors: Iterable[StoredTensor], where: str, roles: Mapping[str, str]
) -> dict[str, str]:
    """Of each tensor that the model needs, what it is called there.

    roles: see `GGUFArchitecture`. A suffix that is neither weight nor bias (`scale` of NVFP4) stays as it is.

    Raises CheckpointError for tensors that have no place.
    """
    found: dict[str, str] = {}
    mixed = any(isinstance(layer.ffn, ExpertsSpec) for layer in model.layers)
    for tensor in tensors:
        if (
            tensor.name.removesuffix(".weight") in FACTORS
            or UNUSED.fullmatch(tensor.name)
            or _is_after_last_layer(tensor.name, model)
        ):
            continue
        place = _of_experts(tensor.name, model.names) if mixed else None
        place = place or gguf_recurrent_config.place_of(tensor.name, model) or _place(tensor.name, model.names, roles)
        if place is None:
            raise CheckpointError(
                f"{where}: tensor {shown(tensor.name)} has no place in {model.architecture}; take the model's "
                "safetensors checkpoint"
            )
        found[tensor.name] = place
    return found


def _is_after_last_layer(name: str, model: ModelSpec) -> bool:
    """A tensor of the layers after the last one, which the family ignores."""
    own = re.match(r"blk\.(\d+)\.", name)
    called = "" if own is None else model.names.layer.format(int(own[1]))
    return (
        own is not None
        and int(own[1]) >= len(model.layers)
        and any(re.fullmatch(each, called) for each in model.names.ignored)
    )


def _of_experts(name: str, names: TensorNames) -> str | None:
    own = OF_LAYER.fullmatch(name)
    if own is None or own[2] not in {*STACKED, *OF_EXPERTS}:
        return None
    prefix = names.layer.format(int(own[1]))
    if own[2] in STACKED:
        return f"{prefix}{own[2]}.{own[3]}"
    called = f"{prefix}{getattr(names.experts, OF_EXPERTS[own[2]])}"
    return called if own[2] == "exp_probs_b" else f"{called}.{own[3]}"


def _place(name: str, names: TensorNames, roles: Mapping[str, str]) -> str | None:
    if whole := OF_MODEL.fullmatch(name):
        role, prefix, suffix = (WHOLE | dict(roles)).get(whole[1]), "", whole[2]
    elif own := OF_LAYER.fullmatch(name):
        role, prefix, suffix = (IN_LAYER | dict(roles)).get(own[2]), names.layer.format(int(own[1])), own[3]
        if own[2] in HALVES and names.latent.halves is not None:
            return f"{prefix}{own[2]}.{suffix}"
        if own[2] in OF_MIXER:
            return f"{prefix}{attrgetter(OF_MIXER[own[2]])(names)}.{suffix}"
    else:
        return None
    if role == "sinks":
        return prefix + names.sinks
    if role == "up" and names.gate_up is not None:
        role = "gate_up"
    called = None if role is None else getattr(names, role)
    if isinstance(called, MergedProjections):
        called = called.name
    return None if called is None else f"{prefix}{called}.{suffix}"

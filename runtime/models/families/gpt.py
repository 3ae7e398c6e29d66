"""GPT-2 and its descendants: GPT-BigCode, GPT-Neo, GPT-J, CodeGen, GPT-NeoX."""

from __future__ import annotations

from dataclasses import replace

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.model_config import MOST_WIDTH, ModelConfig
from ..spec.model_spec import AttentionSpec, LayerNorms, LearnedPositions, ModelSpec, PlainFFNSpec
from ..spec.tensor_names import MergedProjections, TensorNames
from .family_registry import family

EPS = "layer_norm_epsilon"
OF_SUMMARIES = (
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
)
BARE = tuple(
    (begin, f"transformer.{begin}") for begin in ("wte.", "wpe.", "h.", "ln_f.")
)  # as the first files were saved
GPT2 = TensorNames(
    embedding="transformer.wte",
    positions="transformer.wpe",
    norm="transformer.ln_f",
    layer="transformer.h.{}.",
    before_mixer="ln_1",
    before_ffn="ln_2",
    qkv=MergedProjections("attn.c_attn"),
    output="attn.c_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
    prefixes=BARE,
    transposed=True,
)


def _scale(c: ModelConfig) -> float:
    """Of the scores, where a key can turn it off."""
    return c.width() ** -0.5 if c.flag("scale_attn_weights", True) else 1.0


def _plain(c: ModelConfig, key: str = "n_inner") -> PlainFFNSpec:
    return PlainFFNSpec(
        c.positive(key, 4 * c.hidden, MOST_WIDTH), c.activation("gelu_new", "activation_function"), bias=True
    )


@family("GPT2LMHeadModel")
def gpt2(c: ModelConfig) -> ModelSpec:
    c.raw("reorder_and_upcast_attn", *OF_SUMMARIES)  # which precision, and of other heads
    norm, ffn, scale, by_depth = c.layer_norm(key=EPS), _plain(c), _scale(c), c.flag("scale_attn_by_inverse_layer_idx")
    scales = [scale / (index + 1) if by_depth else scale for index in range(c.count)]
    mixers = [c.attention(bias=True, out_bias=True, scale=scale) for scale in scales]
    layers = [c.layer(LayerNorms.pre(norm), mixer, ffn) for mixer in mixers]
    return c.model(layers, norm, tied=True, positions=LearnedPositions(c.positions), names=GPT2)


@family("GPTBigCodeForCausalLM")
def gpt_bigcode(c: ModelConfig) -> ModelSpec:
    """One head of keys for all queries, or each its own; of precision and of the first implementation's memory are the
    rest.
    """
    c.raw("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner", "validate_runner_input")
    c.raw("pre_allocate_kv_cache", "pad_key_length", "max_batch_size", "num_key_value_heads", *OF_SUMMARIES)
    shared = c.flag("multi_query", True)
    kv_heads = 1 if shared else c.heads
    norm, mixer = (
        c.layer_norm(key=EPS),
        AttentionSpec(c.heads, kv_heads, c.width(), _scale(c), bias=True, out_bias=True),
    )
    ffn = replace(_plain(c), activation=c.activation("gelu_pytorch_tanh", "activation_function"))
    names = replace(GPT2, transposed=False, qkv=MergedProjections("attn.c_attn", "rows" if shared else "heads"))
    return c.model(
        [c.layer(LayerNorms.pre(norm), mixer, ffn)] * c.count,
        norm,
        tied=True,
        positions=LearnedPositions(c.positions),
        names=names,
    )


GPT_NEO = replace(
    GPT2,
    transposed=False,
    qkv=None,
    q="attn.attention.q_proj",
    k="attn.attention.k_proj",
    v="attn.attention.v_proj",
    output="attn.attention.out_proj",
    ignored=(r".*\.attn\.attention\.(masked_)?bias",),
)


@family("GPTNeoForCausalLM")
def gpt_neo(c: ModelConfig) -> ModelSpec:
    """Scores have no scale; every other layer has a window."""
    c.raw("resid_dropout", "embed_dropout", *OF_SUMMARIES)
    norm, size = c.layer_norm(key=EPS), c.positive("window_size", 256)
    windows = {"global": None, "local": size}
    mixers = [c.attention(out_bias=True, scale=1.0, window=windows[kind]) for kind in _reaches(c)]
    layers = [c.layer(LayerNorms.pre(norm), mixer, _plain(c, "intermediate_size")) for mixer in mixers]
    return c.model(layers, norm, tied=True, positions=LearnedPositions(c.positions), names=GPT_NEO)


def _reaches(c: ModelConfig) -> list[str]:
    """Of each layer, out of `attention_types`: [[kinds, times], ...]; `attention_layers` says the same at length."""
    types, kinds = c.raw("attention_types"), c.raw("attention_layers")
    try:
        found = (
            kinds if types is None else [kind for each, times in types for kind in list(each) * min(times, c.count + 1)]
        )
        found = ["global", "local"] * 12 if found is None else found
        if len(found) != c.count or not set(found) <= {"global", "local"} or kinds not in (None, found):
            raise ValueError
    except (TypeError, ValueError):
        raise ConfigError(
            f"{c.where}: attention_types={shown(types)} (attention_layers={shown(kinds)}) must give {c.count} layers "
            "of 'global' or 'local'"
        ) from None
    return found


GPT_J = replace(
    GPT2,
    transposed=False,
    qkv=None,
    q="attn.q_proj",
    k="attn.k_proj",
    v="attn.v_proj",
    output="attn.out_proj",
    up="mlp.fc_in",
    down="mlp.fc_out",
)


def _gpt_j(c: ModelConfig, names: TensorNames) -> ModelSpec:
    """GPT-J: mixer and FFN in parallel, the first `rotary_dim` numbers of a head are rotated."""
    c.require("scale_attn_weights", True)
    c.require("rotary", True)
    c.require("rope_theta", 1e4)
    c.require("rope_scaling")
    c.require("rope_parameters")
    c.raw(*OF_SUMMARIES)
    norm, dim = c.layer_norm(key=EPS), c.width()
    mixer = c.attention(rope=c.rope(dim, dim=c.positive("rotary_dim", 64), interleaved=True))
    return c.model(
        [c.layer(LayerNorms.parallel_branches(norm), mixer, _plain(c))] * c.count, norm, head_bias=True, names=names
    )


@family("GPTJForCausalLM")
def gptj(c: ModelConfig) -> ModelSpec:
    return _gpt_j(c, GPT_J)


@family("CodeGenForCausalLM")
def codegen(c: ModelConfig) -> ModelSpec:
    if c.heads % 4:
        raise ConfigError(
            f"{c.where}: n_head={c.heads} must be a multiple of 4: the file holds queries, keys and values in quarters"
        )
    ignored = (r".*\.attn\.causal_mask",)
    return _gpt_j(c, replace(GPT_J, qkv=MergedProjections("attn.qkv_proj", "quarters"), ignored=ignored))


GPT_NEOX = TensorNames(
    embedding="gpt_neox.embed_in",
    norm="gpt_neox.final_layer_norm",
    head="embed_out",
    layer="gpt_neox.layers.{}.",
    qkv=MergedProjections("attention.query_key_value", "heads"),
    output="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    ignored=(r".*\.attention\.(masked_)?bias",),
)


@family("GPTNeoXForCausalLM")
def gpt_neox(c: ModelConfig) -> ModelSpec:
    norm, dim, bias = c.layer_norm(), c.width(), c.flag("attention_bias", True)
    norms = (
        LayerNorms.parallel_branches(norm, own=True) if c.flag("use_parallel_residual", True) else LayerNorms.pre(norm)
    )
    rope = c.rope(dim, share=0.25, theta_keys=("rotary_emb_base",), share_keys=("rotary_pct",))
    c.require("rope_theta", rope.theta)  # may be present too, and is ignored
    c.require("partial_rotary_factor", c.number("rotary_pct", 0.25))
    mixer = c.attention(bias=bias, out_bias=bias, rope=rope)
    ffn = PlainFFNSpec(c.inner, c.activation("gelu"), bias=True)
    return c.model([c.layer(norms, mixer, ffn)] * c.count, norm, names=GPT_NEOX)

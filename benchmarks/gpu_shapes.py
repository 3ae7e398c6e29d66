"""A model directory of a known shape without its weights: config.json and a tokenizer as wide as the vocabulary."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

NANO = Path(__file__).parents[1] / "runtime/nano"
LONGEST_TOKEN = 16  # characters; beyond that real vocabularies are thin


@dataclass(frozen=True, slots=True)
class Shape:
    """What the work of a token depends on; `context` is what the benchmark opens the engine with.

    window: latest tokens that layers see, all but each `full`-th.  keys: of its config.json, in addition to or instead
        of Llama's.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    positions: int = 131_072
    context: int = 8192
    window: int | None = None
    full: int = 1
    keys: dict[str, Any] = field(default_factory=dict)

    @property
    def small(self) -> bool:
        """It only shows that a benchmark runs."""
        return self.hidden < 1000

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs) of the four products of a layer, merged as the engine merges them."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            (queries + 2 * keys, self.hidden),
            (self.hidden, queries),
            (2 * self.inner, self.hidden),
            (self.hidden, self.inner),
        )

    @property
    def flops(self) -> int:
        """Of the layers' products, for a token."""
        return 2 * self.layers * sum(rows * columns for rows, columns in self.linears)

    @property
    def kv_bytes(self) -> int:
        """Of a token's keys and values in bfloat16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    def seen_bytes(self, count: int, shared: int, own: float) -> float:
        """Of the different keys and values that `count` sequences see, which begin with `shared` equal tokens."""
        everything = self.kv_bytes * (shared + count * own)
        if self.window is None:
            return everything
        near = self.kv_bytes * (min(shared, max(0.0, self.window - own)) + count * min(own, self.window))
        full = self.layers // self.full / self.layers
        return full * everything + (1 - full) * near

    def config(self) -> dict[str, Any]:
        """Its config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.inner,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.positions,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 5,
            **self.keys,
        }


QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "attention_bias": False,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
}
GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "query_pre_attn_scalar": 256,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "hidden_act": "gelu_pytorch_tanh",
}
SHAPES = {
    "llama8b": Shape("llama8b", 4096, 32, 32, 8, 128, 14_336, 128_256),
    "llama70b": Shape("llama70b", 8192, 80, 64, 8, 128, 28_672, 128_256),
    "qwen3-4b": Shape("qwen3-4b", 2560, 36, 32, 8, 128, 9728, 151_936, positions=40_960, keys=QWEN3),
    "gemma3-4b": Shape("gemma3-4b", 2560, 34, 8, 4, 256, 10_240, 262_208, window=1024, full=6, keys=GEMMA3),
    "tiny": Shape("tiny", 64, 2, 4, 2, 16, 128, 9000, positions=8192, context=4096),  # to try the script out
    "tiny-qwen3": Shape("tiny-qwen3", 64, 2, 4, 2, 16, 128, 9000, positions=8192, context=4096, keys=QWEN3),
    "tiny-gemma3": Shape(
        "tiny-gemma3",
        64,
        3,
        4,
        2,
        16,
        128,
        9000,
        positions=8192,
        context=4096,
        window=64,
        full=3,
        keys=GEMMA3 | {"sliding_window": 64, "sliding_window_pattern": 3},
    ),
    "wide": Shape("wide", 64, 2, 4, 2, 16, 128, 128_256, positions=8192, context=4096),  # with the whole vocabulary
}


QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "attention_bias": False,
    "use_sliding_window": False,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "swiglu_limit": 7.0,
    "rope_theta": 1.5e5,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}


def _experts(count: int, top_k: int, inner: int) -> dict[str, int]:
    return {"num_experts": count, "num_experts_per_tok": top_k, "moe_intermediate_size": inner}


def _gpt_oss(layers: int, experts: int, top_k: int, window: int) -> dict[str, Any]:
    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    return GPT_OSS | {
        "num_local_experts": experts,
        "num_experts_per_tok": top_k,
        "sliding_window": window,
        "layer_types": kinds,
    }


V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "attention_bias": False,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "head_dim": 64,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 40.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
    },
}
HYBRID = {  # three layers of gated delta net to one of attention
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.25,
}
MIXTURES = {  # of experts, `inner` wide where a layer is dense, or as wide as the experts
    "qwen3-30b-a3b": Shape(
        "qwen3-30b-a3b", 2048, 48, 32, 4, 128, 6144, 151_936, positions=40_960, keys=QWEN3_MOE | _experts(128, 8, 768)
    ),
    "gpt-oss-20b": Shape(
        "gpt-oss-20b", 2880, 24, 64, 8, 64, 2880, 201_088, window=128, full=2, keys=_gpt_oss(24, 32, 4, 128)
    ),
    "deepseek-v2-lite": Shape(
        "deepseek-v2-lite", 2048, 27, 16, 16, 64, 10_944, 102_400, positions=163_840, keys=V2_LITE
    ),
    "tiny-deepseek": Shape(
        "tiny-deepseek",
        64,
        2,
        4,
        4,
        8,
        128,
        9000,
        positions=8192,
        context=4096,
        keys=V2_LITE
        | {
            "head_dim": 8,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "hybrid-4b": Shape("hybrid-4b", 2560, 32, 16, 4, 256, 9216, 248_320, positions=262_144, keys=HYBRID),  # no mixture
    "tiny-hybrid": Shape(
        "tiny-hybrid",
        64,
        4,
        4,
        2,
        16,
        128,
        9000,
        positions=8192,
        context=4096,
        keys=HYBRID
        | {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
    ),
    "tiny-qwen3-moe": Shape(
        "tiny-qwen3-moe", 64, 2, 4, 2, 16, 128, 9000, positions=8192, context=4096, keys=QWEN3_MOE | _experts(8, 2, 32)
    ),
    "tiny-gpt-oss": Shape(
        "tiny-gpt-oss", 64, 2, 4, 2, 16, 64, 9000, context=4096, window=64, full=2, keys=_gpt_oss(2, 8, 2, 64)
    ),
}


def share_of(shape: Shape, cards: int) -> Shape:
    """What one of several cards has of it: of the heads, of the width and of the vocabulary."""
    keys = shape.keys | {name: shape.keys[name] // cards for name in ("moe_intermediate_size",) if name in shape.keys}
    parts = {name: getattr(shape, name) // cards for name in ("heads", "kv_heads", "inner", "vocab")}
    return replace(shape, **parts, keys=keys)


def shape_of(name: str, layers: int | None = None) -> Shape:
    shape = (SHAPES | MIXTURES)[name]
    if not layers:
        return shape
    cut = {"layer_types": shape.keys["layer_types"][:layers]} if "layer_types" in shape.keys else {}
    return replace(shape, layers=layers, keys=shape.keys | cut)


def write_model(folder: Path, shape: Shape, tokens: int | None = None) -> Path:
    """config.json and tokenizer of `shape` in `folder`, made as needed.

    tokens: of the tokenizer, if not as many as the model has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape.config()))
    (folder / "tokenizer_config.json").write_text((NANO / "tokenizer_config.json").read_text())
    (folder / "tokenizer.json").write_text(
        json.dumps(widened(json.loads((NANO / "tokenizer.json").read_text()), tokens or shape.vocab))
    )
    return folder


def widened(tokenizer: dict[str, Any], vocab: int, seed: int = 0) -> dict[str, Any]:
    """A byte-level BPE of `vocab` tokens: the given one, and merges of pairs of
    its tokens, the common ones more often.
    """
    model = dict(tokenizer["model"])
    known, merges = dict(model["vocab"]), list(model["merges"])
    special = {token["content"] for token in tokenizer["added_tokens"]}
    heads = [token for token in known if token not in special]
    tails = [token for token in heads if not token.startswith("Ġ")]
    draw = random.Random(seed)
    while len(known) < vocab:
        left = heads[int(len(heads) * draw.random() ** 2)]
        right = tails[int(len(tails) * draw.random() ** 2)]
        if len(left) + len(right) <= LONGEST_TOKEN and left + right not in known:
            known[left + right] = len(known)
            merges.append([left, right])
    return tokenizer | {"model": model | {"vocab": known, "merges": merges}}

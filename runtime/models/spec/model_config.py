"""A checkpoint's config.json, with what all families ask of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast, get_args

from ...errors import ConfigError
from ...layers.rope_parameters import RopeParameters
from .json_fields import EMPTY, JsonFields, shown
from .model_spec import (
    Activation,
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
)
from .rope_config import read_rope, written_rope
from .tensor_names import TensorNames

KINDS = ("full_attention", "sliding_attention", "chunked_attention")
MOST_LAYERS, MOST_HEADS, MOST_WIDTH, MOST_TOKENS, MOST_EXPERTS = 2_000, 4_096, 2**20, 2**24, 2**16
LIMITS = (
    ("window", "sliding_window"),
    ("chunk", "attention_chunk_size"),
    ("softcap", "attn_logit_softcapping"),
    ("clip", "clip_qkv"),
)
SAME_ACTIVATION = {
    "swish": "silu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu_squared": "relu2",
}

# say nothing about what the network computes
WITHOUT_EFFECT = frozenset(
    {
        "transformers_version",
        "architectures",
        "model_type",
        "_name_or_path",
        "name_or_path",
        "dtype",
        "torch_dtype",
        "auto_map",
        "custom_pipelines",
        "task_specific_params",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "torchscript",
        "pruned_heads",
        "chunk_size_feed_forward",
        "gradient_checkpointing",
        "use_cache",
        "cache_implementation",
        "use_return_dict",
        "use_bfloat16",
        "tokenizer_class",
        "prefix",
        "finetuning_task",
        "suppress_tokens",
        "begin_suppress_tokens",
        "bad_words_ids",
        "max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "num_beams",
        "num_beam_groups",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "num_return_sequences",
        "output_scores",
        "return_dict_in_generate",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "initializer_range",
        "initializer_factor",
        "initializer_cutoff_factor",
        "init_std",
        "attention_dropout",
        "hidden_dropout",
        "dropout",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "ffn_pdrop",
        "embd_dropout",
        "residual_dropout",
        "embedding_dropout",
        "hidden_dropout_prob",
        "activation_dropout",
        "layerdrop",
        "classifier_dropout",
        "classifier_dropout_prob",
        "summary_type",
        "summary_use_proj",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_first_dropout",
        "attention_probs_dropout_prob",
        "rescale_every",
        "_from_model_config",
        "_attn_implementation",
        "attn_implementation",
        "_attn_implementation_autoset",
        "_flash_attn_2_enabled",
        "use_flash_attn",
        "flash_attn",
        "flash_rotary",
        "fused_dense",
        "use_flash_attention",
        "is_decoder",
        "cross_attention_hidden_size",
        "tie_encoder_decoder",
        "tf_legacy_loss",
        "pretraining_tp",
        "slow_but_exact",
        "unsloth_version",
        "unsloth_fixed",
        "model_max_length",
        "special_tokens_map",
        "transformers.js_config",
        "onnx_config",
        "quantization",
        "use_mrope",
        "offset_alibi",
        "is_composition",
        "tie_last_hidden_states",
        "output_router_logits",
        "router_aux_loss_coef",
        "router_z_loss_coef",
    }
)
OF_LOADING = frozenset(
    {"quantization_config", "compression_config", "text_config", "vision_config", "audio_config"}
)  # asked for elsewhere
OF_A_TOKEN = ("_token_id", "_token_ids", "_token_index")  # endings of keys


class ModelConfig(JsonFields):
    """config.json of a decoder, or the text part of a wrapper's. Sizes are checked where they are read.

    context: the longest sequence that is requested, None for the model's own limit.
    """

    def __init__(self, values: Mapping[str, Any], where: str, architecture: str, context: int | None = None) -> None:
        super().__init__(values, where)
        self.architecture, self.context = architecture, context
        self.notes: list[str] = []
        self.left: dict[str, Any] = {}  # keys that count as absent
        self.named_here: set[str] = set()  # by the family, whether it uses them or not

    def raw(self, *keys: str) -> Any:
        self.named_here.update(keys)
        return super().raw(*keys)

    def require(self, key: str, *allowed: object) -> None:
        """As that of `JsonFields`; a key that is left out is judged, too: the maker's own code may have had it."""
        super().require(key, *allowed)
        JsonFields(self.left, self.where).require(key, *allowed)

    def judged(self) -> frozenset[str]:
        """The keys that may change what the network computes."""
        return frozenset(
            key for key in self.values if key not in WITHOUT_EFFECT | OF_LOADING and not key.endswith(OF_A_TOKEN)
        )

    def leave_out(self, keys: frozenset[str]) -> None:
        """Have these keys count as absent."""
        self.left = {key: self.values[key] for key in keys}
        self.values = {key: value for key, value in self.values.items() if key not in keys}

    def stray(self) -> tuple[str, ...]:
        """The keys that are left out, hold something, and are not named by the family."""
        return tuple(key for key in sorted(self.left) if key not in self.named_here and self.left[key] not in EMPTY)

    def assume(self, **values: Any) -> None:
        """The family's defaults for absent keys; null stays null."""
        self.values = values | dict(self.values)

    def assume_rope(self, **parameters: Any) -> None:
        """The family's defaults for absent rotary parameters, as `rope_parameters`."""
        if self.raw("rope_parameters", "rope_scaling") is None:
            self.values = dict(self.values) | {"rope_parameters": parameters}

    # sizes

    @property
    def hidden(self) -> int:
        return self.positive(("hidden_size", "n_embd", "d_model", "n_embed"), most=MOST_WIDTH)

    @property
    def inner(self) -> int:
        return self.positive(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"), most=MOST_WIDTH)

    @property
    def count(self) -> int:
        """Of layers."""
        return self.positive(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), most=MOST_LAYERS)

    @property
    def vocabulary(self) -> int:
        return self.positive(("vocab_size", "padded_vocab_size"), most=MOST_TOKENS)

    @property
    def positions(self) -> int:
        return self.positive(
            ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length", "max_seq_len")
        )

    @property
    def heads(self) -> int:
        return self.positive(
            ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), most=MOST_HEADS
        )

    def kv_heads(self, default: int | None = None) -> int:
        heads = self.heads
        found = self.positive("num_key_value_heads", default or heads)
        if heads % found:
            raise ConfigError(
                f"{self.where}: num_attention_heads={heads} is not a multiple of num_key_value_heads={found}"
            )
        return found

    def width(self, default: int | None = None) -> int:
        """Of a head."""
        if default is None and self.hidden % self.heads and self.values.get("head_dim") is None:
            raise ConfigError(
                f"{self.where}: hidden_size={self.hidden} is not a multiple of num_attention_heads={self.heads}, and "
                "there is no head_dim"
            )
        return self.positive("head_dim", default or self.hidden // self.heads, most=MOST_WIDTH)

    # parts

    def rms(self, default: float = 1e-6, offset: float = 0.0, key: str = "rms_norm_eps") -> NormSpec:
        return NormSpec(self.epsilon(key, default), offset=offset)

    def layer_norm(
        self,
        default: float = 1e-5,
        weight: bool = True,
        bias: bool = True,
        offset: float = 0.0,
        key: str = "layer_norm_eps",
    ) -> NormSpec:
        return NormSpec(self.epsilon(key, default), "layer", offset, weight, bias)

    def epsilon(self, key: str, default: float) -> float:
        value = self.number(key, default)
        if not 0 <= value < 1:
            raise ConfigError(f"{self.where}: key {key!r} must be at least 0 and below 1, not {value}")
        return value

    def activation(self, default: str = "silu", *keys: str) -> Activation:
        keys = keys or ("hidden_act",)
        name = self.get(keys, str, default)
        found = SAME_ACTIVATION.get(name, name)
        if found not in get_args(Activation):
            supported = ", ".join(sorted({*get_args(Activation), *SAME_ACTIVATION}))
            raise ConfigError(
                f"{self.where}: {self.named(keys)}={shown(name)} is not supported; supported: {supported}"
            )
        return cast(Activation, found)

    def rope(self, width: int, kind: str | None = None, **family: Any) -> RopeParameters:
        """See `read_rope`. kind: of the layers, where each has its own parameters."""
        if width % 2:
            raise ConfigError(f"{self.where}: head_dim={width} must be even for rotary positions")
        return read_rope(self, width, kind, context=self.context, **family)

    def rope_fields(self) -> JsonFields:
        """The rotary parameters as written, for additional keys that a family keeps there."""
        return written_rope(self)[0]

    def attention(
        self,
        *,
        kv_heads: int | None = None,
        width: int | None = None,
        norm: QkNormSpec | None = None,
        bias: bool = False,
        out_bias: bool = False,
        scale: float | None = None,
        rope: RopeParameters | None = None,
        **options: Any,
    ) -> AttentionSpec:
        """Llama's attention, plus the family's arguments. kv_heads, width: if config.json does not say."""
        dim = self.width(width)
        for name, key in LIMITS:
            if (value := options.get(name)) is not None and value <= 0:
                raise ConfigError(f"{self.where}: key {key!r} must be above 0, not {value}")
        return AttentionSpec(
            self.heads,
            self.kv_heads(kv_heads),
            dim,
            dim**-0.5 if scale is None else scale,
            rope=rope,
            bias=bias,
            out_bias=out_bias,
            norm=norm,
            **options,
        )

    def experts(
        self,
        expert: GatedFFNSpec | PlainFFNSpec,
        router: RouterSpec,
        count: tuple[str, ...] = ("num_experts", "num_local_experts"),
        top_k: str = "num_experts_per_tok",
        **options: Any,
    ) -> ExpertsSpec:
        """count, top_k: the keys for the number of experts, and for those per token."""
        found, chosen = self.positive(count, most=MOST_EXPERTS // self.count), self.positive(top_k)
        if chosen > found:
            raise ConfigError(f"{self.where}: {top_k}={chosen} must be at most {self.named(count)}={found}")
        groups, kept = router.groups, router.kept_groups
        if (
            found % groups
            or kept > groups
            or chosen > found // groups * kept
            or (groups > 1 and router.group_score == "two" and found < 2 * groups)
        ):
            raise ConfigError(
                f"{self.where}: {chosen} of {found} experts cannot be taken from {kept} of {groups} groups: n_group, "
                "topk_group"
            )
        return ExpertsSpec(found, chosen, expert, router, **options)

    # layers

    def windows(self, default: Iterable[str] | None = None) -> tuple[int | None, ...]:
        """The sliding window of each layer, by `layer_types` or by the family's default if it is absent."""
        window = self.raw("sliding_window")
        kinds = self.kinds(default)
        if "chunked_attention" in kinds:
            raise ConfigError(
                f"{self.where}: layer_types={shown(kinds)}: layers in chunks are not supported by {self.architecture}"
            )
        if window is None:
            return (None,) * len(kinds)
        size = self.positive("sliding_window")
        return tuple(size if kind == "sliding_attention" else None for kind in kinds)

    def kinds(self, default: Iterable[str] | None = None) -> list[str]:
        """`layer_types`: for each layer one of KINDS. The older `sliding_window_pattern` counts if it is absent."""
        found, pattern = self.raw("layer_types"), self.raw("sliding_window_pattern", "_sliding_window_pattern")
        if found is None and default is not None and pattern is not None:
            default = every(self.count, self.positive(("sliding_window_pattern", "_sliding_window_pattern")))
        kinds = list(default or ["full_attention"] * self.count) if found is None else found
        if not isinstance(kinds, list) or len(kinds) != self.count or any(kind not in KINDS for kind in kinds):
            raise ConfigError(
                f"{self.where}: layer_types={shown(kinds)} must name {' or '.join(KINDS[:2])} {self.count} times"
            )
        return kinds

    def layer(self, norms: LayerNorms, mixer: Mixer, ffn: Feedforward | None = None, **options: Any) -> LayerSpec:
        return LayerSpec(norms, mixer, ffn or GatedFFNSpec(self.inner, self.activation()), **options)

    def model(
        self,
        layers: Iterable[LayerSpec],
        norm: NormSpec | None,
        *,
        tied: bool = False,
        names: TensorNames | None = None,
        **options: Any,
    ) -> ModelSpec:
        """tied: if config.json does not say. names: the family's tensor names."""
        if "max_position" not in options:
            options["max_position"] = self.positions
        return ModelSpec(
            self.architecture,
            self.vocabulary,
            self.hidden,
            layers=tuple(layers),
            norm=norm,
            tied=self.flag("tie_word_embeddings", tied),
            names=names or TensorNames(),
            dtype=self.optional(("dtype", "torch_dtype"), str),
            notes=tuple(self.notes),
            **options,
        )

    def finish(self) -> None:
        """Raises ConfigError for a key that has not been read and that may change results."""
        for key in self.unread():
            if key not in WITHOUT_EFFECT and not key.endswith(OF_A_TOKEN):
                raise ConfigError(
                    f"{self.where}: key {shown(key)} ({shown(self.values[key])}) is not understood by "
                    f"{self.architecture}; "
                    "if it changes nothing in the network, take it out of config.json"
                )


def every(count: int, each: int, kind: str = "full_attention", others: str = "sliding_attention") -> list[str]:
    """Layers of which each `each`-th is of `kind`."""
    return [kind if (index + 1) % each == 0 else others for index in range(count)]

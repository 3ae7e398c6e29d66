"""Where the names of the `sglang` package live here: for each of its modules, our modules that have them."""

from __future__ import annotations

_HERE = __name__.rpartition(".")[0]
UPSTREAM = "0.5.12"  # the version whose frontend the alias stands for

_LANGUAGE = (
    "sgl.lang.nodes.primitives",
    "sgl.lang.sgl_function",
    "sgl.lang.backends.default_backend",
    "sgl.lang.global_config",
    "sgl.lang.sampling.choices",
    f"{_HERE}.sglang_toplevel",
    f"{_HERE}.deprecated_names",
)
_RUN = (
    f"{_HERE}.sglang_interpreter",
    "sgl.lang.interpreter.stream_executor",
    "sgl.lang.program.program_state",
    "sgl.lang.program.state_group",
    "sgl.lang.sampling.choices",
)
_TRACE = (f"{_HERE}.sglang_interpreter", "sgl.lang.graph.trace_program", "sgl.lang.graph.tracer")
_BACKENDS = {
    "runtime_endpoint": (
        f"{_HERE}.sglang_alias_endpoint",
        f"{_HERE}.sglang_runtime",
        "sgl.lang.sampling.choices",
        "sgl.lang.nodes.ir",
        "sgl.lang.nodes.traced_nodes",
        f"{_HERE}.deprecated_names",
    ),
    "openai": ("sgl.lang.backends.openai.openai_backend",),
    "crusoe": ("sgl.lang.backends.openai.openai_backend",),
    "anthropic": ("sgl.lang.backends.apis.anthropic_backend",),
    "litellm": ("sgl.lang.backends.apis.litellm_backend",),
    "vertexai": ("sgl.lang.backends.apis.vertex_backend",),
    "base_backend": ("sgl.lang.backends.legacy.legacy_backend", "sgl.lang.chat", "sgl.lang.sampling.choices"),
}

HOMES: dict[str, tuple[str, ...]] = {
    "sglang": _LANGUAGE,
    "sglang.api": _LANGUAGE,
    "sglang.global_config": ("sgl.lang.global_config",),
    "sglang.utils": (f"{_HERE}.sglang_utils",),
    "sglang.lang.api": _LANGUAGE,
    "sglang.lang.ir": (
        "sgl.lang.nodes.ir",
        "sgl.lang.nodes.traced_nodes",
        "sgl.lang.sgl_function",
        "sgl.lang.sampling.choices",
        f"{_HERE}.deprecated_names",
    ),
    "sglang.lang.choices": ("sgl.lang.sampling.choices",),
    "sglang.lang.chat_template": ("sgl.lang.chat", "sgl.lang.chat.known_chat_templates"),
    "sglang.lang.interpreter": _RUN,
    "sglang.lang.tracer": _TRACE,
    "sglang.lang.compiler": _TRACE,
    **{f"sglang.lang.backend.{name}": homes for name, homes in _BACKENDS.items()},
    **{f"sglang.backend.{name}": homes for name, homes in _BACKENDS.items()},
    "sglang.test.test_utils": (f"{_HERE}.sglang_test.sglang_test_utils",),
    "sglang.test.test_programs": (f"{_HERE}.sglang_test.backend_check_programs",),
    "sglang.test.doc_patch": (f"{_HERE}.server_launch",),
    "sglang.srt.utils": (f"{_HERE}.sglang_srt.srt_utils",),
    "sglang.srt.utils.common": (f"{_HERE}.sglang_srt.srt_utils",),
    "sglang.srt.utils.hf_transformers_utils": (f"{_HERE}.sglang_srt.srt_utils",),
    "sglang.srt.hf_transformers_utils": (f"{_HERE}.sglang_srt.srt_utils",),
    "sglang.srt.constrained.outlines_backend": (f"{_HERE}.sglang_srt.srt_utils",),
    "sglang.srt.constrained": (f"{_HERE}.sglang_srt.srt_utils",),
    "sglang.srt.parser.reasoning_parser": (f"{_HERE}.sglang_srt.reasoning_parser",),
    "sglang.srt.reasoning_parser": (f"{_HERE}.sglang_srt.reasoning_parser",),
    "sglang.srt.conversation": (f"{_HERE}.sglang_srt.sglang_conversations",),
    "sglang.srt.parser.conversation": (f"{_HERE}.sglang_srt.sglang_conversations",),
    "sglang.test.ci.ci_register": (f"{_HERE}.sglang_test.ci_register",),
    "sglang.srt.server_args": (f"{_HERE}.server_args",),
    "sglang.srt.server": (f"{_HERE}.sglang_runtime", f"{_HERE}.sglang_alias_engine"),
    "sglang.srt.entrypoints.engine": (f"{_HERE}.sglang_alias_engine",),
    "sglang.version": (f"{_HERE}.sglang_toplevel",),
}

TOP = (
    "Engine",
    "Runtime",
    "ServerArgs",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "select",
    "image",
    "video",
    "separate_reasoning",
    "system",
    "user",
    "assistant",
    "system_begin",
    "system_end",
    "user_begin",
    "user_end",
    "assistant_begin",
    "assistant_end",
    "set_default_backend",
    "flush_cache",
    "get_server_info",
    "RuntimeEndpoint",
    "OpenAI",
    "Anthropic",
    "LiteLLM",
    "VertexAI",
    "Crusoe",
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
    "global_config",
    "__version__",
)


def packages() -> set[str]:
    """Every module of the alias and the packages above them."""
    names = set(HOMES)
    for name in HOMES:
        parts = name.split(".")
        names.update(".".join(parts[:depth]) for depth in range(1, len(parts)))
    return names

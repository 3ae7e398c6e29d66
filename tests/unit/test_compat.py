"""The alias: every module and name that programs import is there, is ours, and hides nothing real."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import textwrap

import pytest

import sgl
from sgl.lang import compat
from sgl.lang.compat.sglang_alias import AliasError

MODULES = {
    "sglang.api": "get_server_args function gen select image video set_default_backend Runtime",
    "sglang.lang.api": "function gen gen_int gen_string separate_reasoning Engine Runtime set_default_backend "
    "flush_cache",
    "sglang.lang.ir": "REGEX_STRING REGEX_INT REGEX_FLOAT REGEX_BOOL REGEX_STR SglGen SglSelect SglRoleBegin "
    "SglRoleEnd SglExpr SglExprList "
    "SglSeparateReasoning SglSamplingParams SglConstantText SglArgument SglVariable SglFork SglGetForkItem SglImage "
    "SglVideo "
    "SglVarScopeBegin SglVarScopeEnd SglConcateAndAppend SglCommitLazy SglFunction",
    "sglang.lang.choices": "ChoicesDecision ChoicesSamplingMethod token_length_normalized greedy_token_selection "
    "unconditional_likelihood_normalized TokenLengthNormalized",
    "sglang.lang.chat_template": "ChatTemplate ChatTemplateStyle register_chat_template get_chat_template "
    "register_chat_template_matching_function get_chat_template_by_model_path",
    "sglang.lang.interpreter": "ProgramState ProgramStateGroup StreamExecutor run_program cache_program",
    "sglang.lang.tracer": "TracerProgramState TracingScope trace_program extract_prefix_by_tracing",
    "sglang.lang.compiler": "compile_func",
    "sglang.lang.backend.runtime_endpoint": "RuntimeEndpoint Runtime",
    "sglang.backend.runtime_endpoint": "RuntimeEndpoint",
    "sglang.lang.backend.base_backend": "BaseBackend",
    "sglang.backend.base_backend": "BaseBackend",
    "sglang.lang.backend.openai": "OpenAI",
    "sglang.backend.openai": "OpenAI",
    "sglang.lang.backend.anthropic": "Anthropic",
    "sglang.lang.backend.litellm": "LiteLLM",
    "sglang.lang.backend.vertexai": "VertexAI",
    "sglang.lang.backend.crusoe": "Crusoe",
    "sglang.global_config": "global_config",
    "sglang.version": "__version__",
    "sglang.utils": "read_jsonl dump_state_text download_and_cache_file http_request print_highlight launch_server_cmd "
    "wait_for_server terminate_process normalize_base_url convert_json_schema_to_str",
    "sglang.test.test_utils": "add_common_sglang_args_and_parse select_sglang_backend CustomTestCase "
    "DEFAULT_MODEL_NAME_FOR_TEST DEFAULT_SMALL_MODEL_NAME_FOR_TEST popen_launch_server",
    "sglang.test.doc_patch": "launch_server_cmd",
    "sglang.srt.utils": "load_image is_hip kill_process_tree",
    "sglang.srt.utils.hf_transformers_utils": "get_tokenizer",
    "sglang.srt.hf_transformers_utils": "get_tokenizer",
    "sglang.srt.constrained.outlines_backend": "build_regex_from_object",
    "sglang.srt.constrained": "build_regex_from_object",
    "sglang.srt.parser.reasoning_parser": "ReasoningParser",
    "sglang.srt.reasoning_parser": "ReasoningParser",
    "sglang.srt.server_args": "ServerArgs",
}
TOP = [
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
]
LOGPROBS = "return_logprob logprob_start_len top_logprobs_num return_text_in_logprobs"
SAMPLING = (
    "stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty "
    f"ignore_eos {LOGPROBS}"
)
SIGNATURES = {
    "function": "func num_api_spec_tokens",
    "set_default_backend": "backend",
    "flush_cache": "backend",
    "get_server_info": "backend",
    "gen": f"name max_tokens min_tokens n {SAMPLING} dtype choices choices_method regex json_schema",
    "gen_int": "name max_tokens n stop stop_token_ids stop_regex",
    "gen_string": "name max_tokens n stop stop_token_ids stop_regex",
    "select": "name choices temperature choices_method",
    "image": "expr",
    "video": "path num_frames",
    "separate_reasoning": "expr model_type",
    "system": "expr",
    "user": "expr",
    "assistant": "expr",
    "assistant_begin": "",
    "RuntimeEndpoint": "base_url api_key verify chat_template_name",
    "Runtime": "log_level launch_timeout",
    "OpenAI": "model_name is_chat_model chat_template is_azure",
    "Anthropic": "model_name",
    "VertexAI": "model_name safety_settings",
    "LiteLLM": "model_name chat_template api_key organization base_url timeout max_retries default_headers",
    "Crusoe": "model_name",
}


@pytest.fixture(autouse=True)
def alias():
    compat.install()
    yield
    compat.uninstall()


def test_every_name_of_the_package():
    import sglang

    assert sorted(sglang.__all__) == sorted(TOP)
    for name in TOP:
        assert getattr(sglang, name) is not None
    assert set(TOP) <= set(dir(sglang))


@pytest.mark.parametrize("module", MODULES)
def test_every_module_and_its_names(module):
    found = importlib.import_module(module)
    for name in MODULES[module].split():
        assert hasattr(found, name), f"{module}.{name}"


def test_the_names_are_our_objects():
    import sglang
    from sglang.lang.chat_template import ChatTemplate
    from sglang.lang.interpreter import ProgramState
    from sglang.lang.ir import SglGen

    assert sglang.gen is sgl.gen
    assert sglang.function is sgl.function
    assert sglang.select is sgl.select
    assert sglang.global_config is sgl.global_config
    assert SglGen is type(sgl.gen("x"))
    assert ProgramState is sgl.ProgramState
    assert ChatTemplate is sgl.lang.chat.ChatTemplate


def test_global_config_is_an_object_and_a_module():
    import sglang
    from sglang.global_config import global_config

    importlib.import_module("sglang.global_config")
    assert sglang.global_config is global_config is sgl.global_config


@pytest.mark.parametrize("name", SIGNATURES)
def test_positional_parameters_are_in_the_order_that_programs_use(name):
    import sglang

    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(getattr(sglang, name)).parameters.values()
    found = [parameter.name for parameter in parameters if parameter.kind in kinds]
    wanted = SIGNATURES[name].split()
    assert found[: len(wanted)] == wanted


def test_what_a_gen_does_not_say_is_inherited():
    import sglang

    assert all(
        p.default is None for p in inspect.signature(sglang.gen).parameters.values() if p.kind is not p.VAR_KEYWORD
    )


def test_imports_with_star_and_of_submodules():
    space: dict[str, object] = {}
    exec("from sglang import *\nimport sglang.lang.chat_template as templates", space)
    assert space["gen"] is sgl.gen
    assert space["templates"].get_chat_template("chatml").name == "chatml"  # type: ignore[attr-defined]
    import sglang

    assert sglang.lang.chat_template is space["templates"]


def test_modules_that_the_alias_does_not_have():
    with pytest.raises(ModuleNotFoundError, match=r"sglang\.srt\.managers.*sgl stands in"):
        importlib.import_module("sglang.srt.managers")
    import sglang

    with pytest.raises(AttributeError, match="Shortfin"):
        _ = sglang.Shortfin
    with pytest.raises(ImportError):
        exec("from sglang import Shortfin")


def test_the_front_door():
    assert sgl.compat.install is compat.install
    assert importlib.import_module("sgl.compat").uninstall is compat.uninstall


def test_install_twice_and_uninstall():
    compat.install()
    assert compat.installed()
    import sglang  # noqa: F401

    compat.uninstall()
    assert not compat.installed()
    assert "sglang" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sglang")
    compat.uninstall()


@pytest.fixture
def real(tmp_path, monkeypatch):
    """A package of that name that is really installed."""
    compat.uninstall()
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("sglang", None)


def test_a_real_sglang_is_never_hidden_silently(real):
    with pytest.raises(AliasError, match=str(real)):
        compat.install()
    assert importlib.import_module("sglang").real
    with pytest.raises(AliasError, match=r"install\(force=True\)"):
        compat.install()


def test_force_hides_it_and_uninstall_brings_it_back(real):
    before = importlib.import_module("sglang")
    compat.install(force=True)
    assert importlib.import_module("sglang").gen is sgl.gen
    compat.uninstall()
    assert importlib.import_module("sglang") is before


def test_the_alias_imports_neither_torch_nor_sdks():
    program = """
        import sys
        import sgl.compat
        sgl.compat.install()
        import sglang as sgl
        from sglang import OpenAI, Runtime, RuntimeEndpoint
        from sglang.lang.ir import SglGen
        from sglang.test.test_utils import select_sglang_backend
        from sglang.utils import read_jsonl
        sgl.function(lambda s: None)
        print([name for name in ("torch", "openai", "anthropic", "transformers") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr

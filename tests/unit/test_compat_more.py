"""What public scripts import beside the language: a server's command line, conversations, marks of a CI."""

from __future__ import annotations

import argparse
import importlib

import pytest

import sgl.compat
from sgl.lang.chat import get_chat_template


@pytest.fixture(autouse=True)
def alias():
    sgl.compat.install(local=True)
    yield
    sgl.compat.uninstall()


def test_a_server_s_command_line():
    args = importlib.import_module("sglang.srt.server_args")
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="mine")  # the script has one of that name: it stays
    args.ServerArgs.add_cli_args(parser)
    parser.add_argument("--num-questions", type=int, default=3)
    words = (
        "--model-path x/y --tp 2 --context-length 512 --mem-fraction-static 0.5 --trust-remote-code "
        "--num-questions 7 --cuda-graph-bs 1 2"
    )
    found = parser.parse_args(words.split())
    with pytest.warns(UserWarning, match="no effect on the embedded engine: .*tp_size=2"):
        made = args.ServerArgs.from_cli_args(found)
    assert (made.model_path, made.context_length, made.tp_size, made.trust_remote_code) == ("x/y", 512, 2, True)
    assert (made.host, found.num_questions, made.disable_cuda_graph, made.port) == ("mine", 7, False, None)
    assert made.engine_options(replaced=False)["context"] == 512
    assert args.ServerArgs.from_cli_args(parser.parse_args([])).model_path is None
    with pytest.raises(AttributeError, match="no option 'colour'"):
        _ = made.colour
    assert parser.parse_args(["--model", "z"]).model_path == "z"


@pytest.mark.parametrize("module", ["sglang.srt.conversation", "sglang.srt.parser.conversation"])
def test_conversations(module):
    conversation = importlib.import_module(module)
    begun = conversation.chat_templates["chatml"].copy()
    begun.set_system_message("Be brief.")
    begun.append_message(begun.roles[0], "Hi")
    begun.append_message(begun.roles[1], None)
    wanted = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert begun.get_prompt() == wanted and begun.stop_str == ["<|im_end|>"]
    assert begun.to_openai_api_messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert not conversation.chat_templates["chatml"].messages
    assert conversation.chat_templates["qwen2-vl"].image_token == get_chat_template("qwen2-vl").image_token
    assert conversation.get_conv_template_by_model_path("Qwen/Qwen2-VL-7B-Instruct") == "qwen2-vl"
    llama = conversation.chat_templates["llama-2-chat"].copy()
    llama.set_system_message("S")
    llama.append_message("user", "U")
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    assert llama.get_prompt() == get_chat_template("llama-2-chat").get_prompt(messages)


def test_marks_of_a_ci_do_nothing():
    marks = importlib.import_module("sglang.test.ci.ci_register")
    assert marks.register_cuda_ci(est_time=10, suite="x") is None and marks.register_amd_ci(3, "y") is None


def test_a_program_is_compiled_for_a_backend_that_can_nothing():
    sglang = importlib.import_module("sglang")
    base = importlib.import_module("sglang.lang.backend.base_backend")

    @sglang.function
    def program(s, q):
        s += (
            "A long start that all runs have in common, and that is handed over once only. "
            + q
            + sglang.gen("a", max_tokens=4)
        )

    compiled = program.compile(backend=base.BaseBackend())
    compiled.print_graph()
    assert program.trace(backend=base.BaseBackend()) is not None

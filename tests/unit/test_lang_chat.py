"""Chat templates: strings, matching, and the probing of Jinja templates."""

from __future__ import annotations

import pytest

from sgl.lang.chat import (
    ChatTemplate,
    chat_template_registry,
    get_chat_template,
    get_chat_template_by_model_path,
    matching_function_registry,
    register_chat_template,
    register_chat_template_matching_function,
)
from sgl.lang.chat.tokenizer_chat_template import JinjaChatTemplate
from sgl.lang.errors import ProgramError

MATCHES = {
    "deepseek-ai/DeepSeek-V3-0324": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3-Base": "default",
    "OrionStarAI/Orion-14B": "claude",
    "deepseek-ai/Janus-Pro-7B": "janus-pro",
    "databricks/dbrx-instruct": "dbrx-instruct",
    "lmsys/vicuna-7b": "vicuna_v1.1",
    "meta-llama/Llama-2-7b-chat-hf": "llama-2-chat",
    "codellama/CodeLlama-7b-Instruct-hf": "llama-2-chat",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mistral",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3-instruct",
    "TinyLlama/TinyLlama-1.1B-Chat": "chatml",
    "Qwen/Qwen2-VL-7B-Instruct": "qwen2-vl",
    "Qwen/Qwen2.5-7B-Instruct": "qwen",
    "THUDM/glm-4.1v-9b": "glm-4v",
    "lmms-lab/llava-onevision-qwen2-72b": "chatml-llava",
    "01-ai/Yi-1.5-34B-Chat": "yi-1.5",
    "google/gemma-2-9b-it": "gemma-it",
    "google/gemma-4-27b-it": "gemma-4-it",
    "openbmb/MiniCPM-V-2_6": "minicpmv",
    "openbmb/MiniCPM-o-2_6": "minicpmo",
    "CohereForAI/c4ai-command-r-v01": "c4ai-command-r",
    "ibm-granite/granite-3.0-8b-instruct": "granite-3-instruct",
    "OpenGVLab/InternVL2_5-8B": "internvl-2-5",
    "internlm/Intern-S1": "interns1",
    "Qwen/Qwen3-8B": "default",
}


@pytest.mark.parametrize(("path", "name"), MATCHES.items())
def test_matching(path, name):
    assert get_chat_template_by_model_path(path).name == name


def test_known_names():
    assert {"default", "claude", "chatml", "llama-4", "janus", "llama-3-instruct-llava"} <= set(chat_template_registry)
    assert len(chat_template_registry) >= 27
    with pytest.raises(KeyError, match="did you mean 'chatml'"):
        get_chat_template("chatm")


def test_prompts():
    talk = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
    ]
    assert get_chat_template("llama-2-chat").get_prompt(talk) == "[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST]A </s><s>"
    assert get_chat_template("llama-2-chat").get_prompt(talk[1:]) == "[INST] U [/INST]A </s><s>"
    assert get_chat_template("chatml").get_prompt(talk[:1]) == "<|im_start|>system\nS<|im_end|>\n"
    assert get_chat_template("claude").get_prompt(talk) == "S\n\nHuman: U\n\nAssistant:A"
    unset = [{"role": "system", "content": None}, {"role": "user", "content": "U"}]
    assert get_chat_template("default").get_prompt(unset) == "USER:U\n"
    assert "helpful assistant" in get_chat_template("qwen").get_prompt(unset)


def test_own_templates_and_matchers():
    register_chat_template(ChatTemplate("mine", None, {"user": ("U>", "<")}, stop_str="<"))
    matcher = register_chat_template_matching_function(lambda path: "mine" if "my-model" in path else None)
    try:
        assert get_chat_template_by_model_path("x/my-model").stops == ("<",)
    finally:
        matching_function_registry.remove(matcher)
        del chat_template_registry["mine"]


class Jinja:
    """A tokenizer as far as chat is concerned: bytes, and one special token."""

    bos_id = 1
    special_ids = frozenset({0, 1})

    def __init__(self, source: str, adds_bos: bool = True) -> None:
        import jinja2

        self.adds_bos = adds_bos
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = self._refuse
        self._template = environment.from_string(source)
        self.token_bytes = [b"<end>", b"<bos>"]

    def _refuse(self, message):
        raise ValueError(message)

    def encode(self, text, special_prefix=False, parse_special=True):
        import numpy as np

        ids = [1] if special_prefix and self.adds_bos else []
        return np.array(ids + ([0] if text.startswith("<end>") else [2] * len(text)), np.int32)

    def chat_messages(self, messages):
        return messages

    def render_chat(self, messages, add_generation_prompt=False):
        return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, bos_token="<bos>")


PLAIN = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<system>Be good.<end>\n{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n<think>{% endif %}"
)
FOLDED = (
    "{% if messages[0].role == 'system' %}{% set sys = '<<' + messages[0].content + '>> ' %}{% set rest = "
    "messages[1:] %}"
    "{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m.role == 'user' %}[INST] {{ sys if loop.first else '' }}{{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}<end>{% else %}{{ raise_exception('only user and assistant') "
    "}}{% endif %}"
    "{% endfor %}"
)


def write(template: ChatTemplate, *turns: tuple[str, str]) -> str:
    """A conversation written turn by turn, as a program does it."""
    text, history = "", []
    for role, content in turns:
        prefix, suffix = template.get_prefix_and_suffix(role, history)
        text += prefix + content + suffix
        history.append({"role": role, "content": ""})
    return text


@pytest.mark.parametrize("source", [PLAIN, DEFAULT_SYSTEM, FOLDED])
@pytest.mark.parametrize(
    "roles",
    [["user"], ["system", "user"], ["user", "assistant", "user"], ["system", "user", "assistant", "user"]],
)
def test_turns_add_up_to_what_the_template_renders(source, roles):
    tokenizer = Jinja(source, adds_bos=False)
    turns = [(role, f"Text {index}") for index, role in enumerate(roles)]
    written = write(JinjaChatTemplate(tokenizer), *turns)
    messages = [{"role": role, "content": content} for role, content in turns]
    rendered = tokenizer.render_chat(messages)
    if source is DEFAULT_SYSTEM:  # the assistant's turns begin as generation does
        written = written.replace("<assistant>\n<think>", "<assistant>")
    assert written == rendered


def test_bos_is_left_to_the_tokenizer():
    template = JinjaChatTemplate(Jinja(PLAIN))
    assert template.get_prefix_and_suffix("user", []) == ("<user>", "<end>\n")
    assert template.get_prompt([{"role": "user", "content": "x"}]) == "<user>x<end>\n"
    assert template.stops == ("<end>",)


def test_generation_prompt_opens_the_models_turn():
    template = JinjaChatTemplate(Jinja(DEFAULT_SYSTEM))
    assert template.get_prefix_and_suffix("assistant", [{"role": "user", "content": ""}])[0] == "<assistant>\n<think>"


def test_roles_that_the_template_refuses():
    with pytest.raises(ProgramError, match="does not render turns of user, tool"):
        JinjaChatTemplate(Jinja(FOLDED)).get_prefix_and_suffix("tool", [{"role": "user", "content": ""}])

"""Chat templates: where they come from, what they write beside transformers, and the known formats of families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_tokenizers as tiny
from tokenizers import AddedToken

from sgl.runtime.errors import ConfigError
from sgl.runtime.text.chat_templates.chat_template_files import given_source, templates_for
from sgl.runtime.text.chat_templates.family_chat_formats import CHAT_FORMATS
from sgl.runtime.text.tokenizer import Tokenizer

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <you> & «me» "},
    {
        "role": "assistant",
        "content": "",
        "reasoning": "Weather? ",
        "tool_calls": [{"function": {"name": "look", "arguments": {"at": "é"}}}],
    },
    {"role": "tool", "content": '{"sky": "blue"}'},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": "Thanks"},
]
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "Look at <x>", "parameters": {"type": "object"}}}
]
SOURCES = {
    "plain": tiny.CHAT_TEMPLATE,
    "tools": (
        "{{- bos_token }}\n{%- if tools %}\n  {%- for t in tools %}{{ t | tojson(indent=2) }}\n{% endfor %}\n{%- "
        "endif %}\n"
        "{%- for m in messages %}\n{%- if loop.index0 == 1 %}{% continue %}{% endif %}\n"
        "[{{ m.role }}]{{ m.content | trim }}{%- if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif "
        "%}\n{% endfor %}"
        "{%- if add_generation_prompt %}[assistant]{% endif %}{{ eos_token }}"
    ),
    "reasoning": "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ "
    "m['content'].split('<')[-1].strip('\\n') }}\n{% endfor %}",
    "namespace": (
        "{% set ns = namespace(last='') %}{% for m in messages[::-1] %}{% if m.role == 'user' and not ns.last %}"
        "{% set ns.last = m.content %}{% endif %}{% endfor %}{{ ns.last }}{{ dict(a=1) | tojson }}{{ "
        "enable_thinking is defined }}"
    ),
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{{ unk_token }}{% "
    "endfor %}",
}


def written(folder: Path, template: Any = None, **config: Any) -> Path:
    about = tiny.CONFIG | {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    return tiny.write(
        folder, tiny.byte_level_backend(), tokenizer_config=about, config={"model_type": "llama"} | config
    )


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_texts_are_those_of_transformers(tmp_path: Path, source: str, prompt: bool, tools: Any) -> None:
    transformers = pytest.importorskip("transformers")
    folder = written(tmp_path, source)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(str(folder)), Tokenizer.load(folder)
    for talk in (TALK, TALK[:2], TALK[1:2]):
        expected = theirs.apply_chat_template(talk, tools=tools, tokenize=False, add_generation_prompt=prompt)
        assert ours.render_chat(talk, add_generation_prompt=prompt, tools=tools) == expected


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_the_template_is_found_where_transformers_finds_it(tmp_path: Path, tools: Any) -> None:
    transformers = pytest.importorskip("transformers")
    named = [{"name": "tool_use", "template": "T{{ tools[0].type }}"}, {"name": "default", "template": "D"}]
    for step in range(4):
        folder = written(tmp_path / str(step), named if step else "S")
        if step > 1:
            (folder / "chat_template.jinja").write_text("F")
        if step > 2:
            (folder / "additional_chat_templates").mkdir()
            (folder / "additional_chat_templates" / "tool_use.jinja").write_text("A")
        theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
        expected = theirs.apply_chat_template(TALK, tools=tools, tokenize=False)
        assert Tokenizer.load(folder).render_chat(TALK, tools=tools) == expected


def test_chat_template_json_is_the_last_place(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert Tokenizer.load(folder).render_chat(TALK) == "J"


def test_named_templates_without_a_default(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(
        written(tmp_path, [{"name": "rag", "template": "R"}, {"name": "tool_use", "template": "T"}])
    )
    assert tokenizer.chat_template is None
    assert tokenizer.render_chat(TALK, tools=TOOLS) == "T"
    with pytest.raises(ConfigError, match=r"rag, tool_use\) none is the default.*chat_template"):
        tokenizer.render_chat(TALK)


@pytest.mark.parametrize("wrong", [3, [3], [{"name": "default"}]])
def test_a_template_that_is_none(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=r"chat_template is neither a text nor named texts|tokenizer_config.json: key 'chat_template' must be "
        r"str or list or dict",
    ):
        Tokenizer.load(written(tmp_path, wrong))


def test_a_template_that_refuses_is_an_error_with_its_words(tmp_path: Path) -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    tokenizer = Tokenizer.load(written(tmp_path, source))
    with pytest.raises(ConfigError, match="refuses these messages: System role not supported"):
        tokenizer.render_chat(TALK)


def test_bos_of_the_template_is_not_doubled(tmp_path: Path) -> None:
    about = tiny.CONFIG | {"tokenizer_class": "PreTrainedTokenizerFast"}
    folder = tiny.write(tmp_path, tiny.byte_level_backend(bos=True), tokenizer_config=about)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode_chat(TALK[1:2]).tolist().count(tokenizer.bos_id) == 1
    assert tokenizer.encode_chat([{"role": "user", "content": "<s>"}]).tolist().count(tokenizer.bos_id) == 1


# given by the user


def test_a_template_that_is_given(tmp_path: Path) -> None:
    folder = written(tmp_path, "S")
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[0].role }}")
    assert Tokenizer.load(folder, "{{ messages | length }}").render_chat(TALK) == "6"
    assert Tokenizer.load(folder, str(file)).render_chat(TALK) == "system"
    assert Tokenizer.load(folder, "chatml").render_chat(TALK[1:2]) == "<|im_start|>user\nHi <you> & «me» <|im_end|>\n"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{% if %}", "does not compile"),
        ("none.jinja", r"no file that can be read.*known formats: llama3"),
        ("llama3", r"is made of <\|start_header_id\|>.*this vocabulary does not have"),
    ],
)
def test_a_wrong_template_is_refused(tmp_path: Path, given: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Tokenizer.load(written(tmp_path), given)


# known formats

SYSTEM, USER, ANSWER, AGAIN = (
    {"role": role, "content": text} for role, text in zip(("system", "user", "assistant", "user"), "SUAV", strict=True)
)
ROWS = {
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"  # noqa: E501
    "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "phi4": "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>U<|im_end|><|im_start|>assistant<|im_sep|>A<|im_end|>"  # noqa: E501
    "<|im_start|>user<|im_sep|>V<|im_end|><|im_start|>assistant<|im_sep|>",
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
    "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
    "gemma": "<s><start_of_turn>user\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",  # noqa: E501
    "gemma3": "<s><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",  # noqa: E501
    "phi3": "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n<|user|>\nV<|end|>\n<|assistant|>\n",
    "command-r": "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>U<|END_OF_TURN_TOKEN|>"  # noqa: E501
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>A<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>V<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    "granite": "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>U<|end_of_text|>\n"  # noqa: E501
    "<|start_of_role|>assistant<|end_of_role|>A<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>V<|end_of_text|>\n"
    "<|start_of_role|>assistant<|end_of_role|>",
    "deepseek": "<s>S<｜User｜>U<｜Assistant｜>A</s><｜User｜>V<｜Assistant｜>",
    "glm4": "[gMASK]<sop><|system|>\nS<|user|>\nU<|assistant|>\nA<|user|>\nV<|assistant|>",
    "mistral": "<s>[INST] U[/INST] A</s>[INST] V[/INST]",
    "mistral-v1": "<s>[INST] U [/INST] A</s>[INST] V [/INST]",
    "llama2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]",
    "zephyr": "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\nA</s>\n<|user|>\nV</s>\n<|assistant|>\n",
    "vicuna": "<s>S USER: U ASSISTANT: A</s>USER: V ASSISTANT:",
    "falcon-chat": "System: S\nUser: U\nFalcon: A\nUser: V\nFalcon:",
    "falcon-instruct": "S\nUser: U\nAssistant: A\nUser: V\nAssistant:",
}
NO_SYSTEM = {"gemma", "mistral", "mistral-v1"}
by_format = pytest.mark.parametrize("known", CHAT_FORMATS, ids=[known.name for known in CHAT_FORMATS])


def family(folder: Path, kind: str | None, marks: tuple[str, ...], name: str = "") -> Path:
    """A checkpoint without a template of its own."""
    backend = tiny.Backend.from_str(tiny.byte_level_backend())
    spec = json.loads(backend.to_str())
    backend = tiny.Backend.from_str(
        json.dumps({**spec, "added_tokens": [t for t in spec["added_tokens"] if "im_" not in t["content"]]})
    )
    backend.add_tokens([AddedToken(mark, special=True) for mark in marks])
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "auto_map": {"AutoTokenizer": []},
    }
    return tiny.write(
        folder, backend.to_str(), tokenizer_config=about, config={"model_type": kind, "_name_or_path": name}
    )


NAMES = {
    "mistral-v1": "Mistral-7B-Instruct-v0.2",
    "llama2": "llama-2-7b-chat",
    "zephyr": "zephyr-7b",
    "vicuna": "vicuna-7b",
}
NAMES |= {"falcon-chat": "falcon-180B-chat", "falcon-instruct": "falcon-7b-instruct"}


@by_format
def test_a_family_writes_its_known_format(tmp_path: Path, known: Any) -> None:
    for kind in known.kinds.split() or ("anything",):
        tokenizer = Tokenizer.load(family(tmp_path / str(kind), kind, known.marks.split(), NAMES.get(known.name, "")))
        talk = [USER, ANSWER, AGAIN] if known.name in NO_SYSTEM else [SYSTEM, USER, ANSWER, AGAIN]
        assert tokenizer.render_chat(talk, add_generation_prompt=True) == ROWS[known.name]
        if known.name in NO_SYSTEM:
            with pytest.raises(ConfigError, match="no system turns; write it into the first user turn"):
                tokenizer.render_chat([SYSTEM, USER])
        with pytest.raises(ConfigError, match="writes no turns of tool"):
            tokenizer.render_chat([USER, {"role": "tool", "content": ""}])
        with pytest.raises(ConfigError, match="writes text alone"):
            tokenizer.render_chat([{"role": "user", "content": [{"type": "text", "text": "x"}]}])


@by_format
def test_a_format_whose_marks_or_name_are_missing_is_not_used(tmp_path: Path, known: Any) -> None:
    kind = (known.kinds.split() or ("anything",))[0]
    for step, marks in enumerate([known.marks.split()[:-1], ()]):
        tokenizer = Tokenizer.load(family(tmp_path / str(step), kind, marks))
        assert tokenizer.chat_template is None or known.name == "phi4"  # without <|im_sep|> it may still be another


@pytest.mark.parametrize("kind", ["gpt2", "opt", "bloom", "gptj", "llama", "mistral", "falcon"])
def test_a_base_model_has_no_format_and_the_error_says_how_to_give_one(tmp_path: Path, kind: str) -> None:
    tokenizer = Tokenizer.load(family(tmp_path, kind, ()))
    with pytest.raises(ConfigError, match=rf"no chat template.*'{kind}'.*Engine\(chat_template=\.\.\.\).*chatml"):
        tokenizer.render_chat([USER])


def test_the_checkpoints_own_template_wins_over_its_family(tmp_path: Path) -> None:
    folder = family(tmp_path, "llama", CHAT_FORMATS[0].marks.split())
    assert "start_header_id" in str(Tokenizer.load(folder).chat_template)
    (folder / "chat_template.jinja").write_text("mine")
    assert Tokenizer.load(folder).chat_template == "mine"


def test_nothing_is_known_without_files(tmp_path: Path) -> None:
    assert templates_for(tmp_path, {}, []) is None
    assert given_source("chatml").startswith("{% for")

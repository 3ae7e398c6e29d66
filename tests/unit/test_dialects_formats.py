"""Every format of a family: conversations as published templates write them, in pieces, parsed to the letter and
enforced.

The texts are what the named templates write of CALLS (weather of Rome, then of Rome and Oslo, then none), looked up in
ggml-org/llama.cpp (models/templates), vllm-project/vllm (examples, tool_parsers), sgl-project/sglang
(python/sglang/srt/function_call) and mlc-ai/xgrammar (builtin_structural_tag.py).
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import pytest
from grammar_walks import BYTES, accepts, walk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgl.grammars import compile_json_schema, compile_structural
from sgl.runtime.dialects import (
    DIALECTS,
    MARKS,
    ArgumentsDelta,
    ContentDelta,
    DialectToolCall,
    ReasoningDelta,
    Tool,
    ToolCallEnd,
    ToolCallStart,
    dialect_for,
    dialect_named,
)
from sgl.runtime.dialects.model_output_parser import joined
from sgl.runtime.text.chat_templates.hf_chat_template import ChatTemplate

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "sure": {"type": "boolean"},
        "unit": {"enum": ["c", "f"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city", "days"],
}
TOOLS = [Tool("weather", "The weather", WEATHER), Tool("now", "The time")]
ROME, OSLO = {"city": "Rome", "days": 3}, {"city": "Oslo <N>", "days": 1, "tags": ["a"]}


@dataclass(frozen=True)
class Format:
    """What a template writes of a call of Rome, and of calls of Rome, Oslo and now behind "I look."; who wrote it."""

    source: str
    one: str
    several: str
    model: str
    mark: str  # in its template
    thinking: str = "qwen3"


V3 = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
ROME_J, OSLO_J = '{"city": "Rome", "days": 3}', '{"city": "Oslo <N>", "days": 1, "tags": ["a"]}'


def objects(opening: str, closing: str, key: str = "arguments", between: str = ", ") -> tuple[str, str]:
    listed = [
        f'{{"name": "{name}", "{key}": {text}}}'
        for name, text in (("weather", ROME_J), ("weather", OSLO_J), ("now", "{}"))
    ]
    return f"{opening}{listed[0]}{closing}", f"I look.{opening}{between.join(listed)}{closing}"


def functions(tag: str, pad: str) -> tuple[str, str]:
    def call(name: str, **values: str) -> str:
        inner = "".join(f"<parameter={key}>{pad}{value}{pad}</parameter>\n" for key, value in values.items())
        return f"<{tag}>\n<function={name}>\n{inner}</function>\n</{tag}>"

    rome, oslo = call("weather", city="Rome", days="3"), call("weather", city="Oslo <N>", days="1", tags='["a"]')
    return rome, f"I look.\n{rome}\n{oslo}\n{call('now')}"


def glm(line: str, before: str = "<tool_call>", sep: str = "") -> tuple[str, str]:
    def call(name: str, **values: str) -> str:
        inner = "".join(f"<arg_key>{k}</arg_key>{line}<arg_value>{v}</arg_value>{line}" for k, v in values.items())
        return f"{before}{name}{sep}{line}{inner}</tool_call>"

    rome, oslo = call("weather", city="Rome", days="3"), call("weather", city="Oslo <N>", days="1", tags='["a"]')
    return rome, line.join([rome, oslo, call("now")])


def invoked(begin: str, end: str, parameter: str, typed: bool = False) -> tuple[str, str]:
    def call(name: str, **values: str) -> str:
        kinds = {key: f' string="{"true" if key == "city" else "false"}"' if typed else "" for key in values}
        inner = "".join(
            f'<{parameter} name="{key}"{kinds[key]}>{value}</{parameter}>\n' for key, value in values.items()
        )
        return f'{begin} name="{name}">\n{inner}{end}\n'

    rome, oslo = call("weather", city="Rome", days="3"), call("weather", city="Oslo <N>", days="1", tags='["a"]')
    return rome, rome + oslo + call("now")


def deepseek(head: str, link: str, tail: str, between: str) -> tuple[str, str]:
    def call(name: str, arguments: str) -> str:
        return f"{V3[1]}{head}{name}{link}{arguments}{tail}{V3[3]}"

    rome = call("weather", ROME_J)
    listed = between.join([rome, call("weather", OSLO_J), call("now", "{}")])
    return f"{V3[0]}{rome}{V3[4]}", f"I look.{V3[0]}{listed}{V3[4]}"


def kimi() -> tuple[str, str]:
    calls = [
        f"<|tool_call_begin|>functions.{name}:{place}<|tool_call_argument_begin|>{text}<|tool_call_end|>"
        for place, (name, text) in enumerate((("weather", ROME_J), ("weather", OSLO_J), ("now", "{}")))
    ]
    begin, end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    return f"{begin}{calls[0]}{end}", f"I look.{begin}{''.join(calls)}{end}"


def cohere() -> tuple[str, str]:
    calls = [
        f'    {{"tool_call_id": "{place}", "tool_name": "{name}", "parameters": {text}}}'
        for place, (name, text) in enumerate((("weather", ROME_J), ("weather", OSLO_J), ("now", "{}")))
    ]
    begin, end = "<|START_ACTION|>[\n", "\n]<|END_ACTION|>"
    return f"{begin}{calls[0]}{end}", "I look." + begin + ",\n".join(calls) + end


def cofl() -> tuple[str, str]:
    def value(key: str, kind: str, text: str) -> str:
        return f'<cofl:value name="{key}" type="{kind}">{text}</cofl:value>'

    bodies = [
        ("weather", value("city", "raw", "Rome") + value("days", "json", "3")),
        ("weather", value("city", "raw", "Oslo <N>") + value("days", "json", "1") + value("tags", "json", '["a"]')),
        ("now", ""),
    ]
    calls = [f'<cofl:tool_call id="{i}" name="{name}">{body}</cofl:tool_call>' for i, (name, body) in enumerate(bodies)]
    return (
        f"<cofl:tool_calls>{calls[0]}</cofl:tool_calls>",
        f"I look.\n<cofl:tool_calls>{''.join(calls)}</cofl:tool_calls>",
    )


def python(opening: str, closing: str) -> tuple[str, str]:
    rome, oslo = 'weather(city="Rome", days=3)', 'weather(city="Oslo <N>", days=1, tags=["a"])'
    return f"{opening}[{rome}]{closing}", f"I look.\n{opening}[{rome}, {oslo}, now()]{closing}"


def harmony(before: str, link: str) -> tuple[str, str]:
    def call(name: str, text: str) -> str:
        return f"{before}to=functions.{name}{link}<|message|>{text}<|call|>"

    start = "<|start|>assistant"
    several = start.join([call("weather", ROME_J), call("weather", OSLO_J), call("now", "{}")])
    return call("weather", ROME_J), f"<|channel|>commentary<|message|>I look.<|end|>{start}{several}"


def within(pair: tuple[str, str], opening: str, closing: str, said: str = "I look.\n") -> tuple[str, str]:
    return f"{opening}{pair[0]}{closing}", f"{said}{opening}{pair[1]}{closing}"


def before(pair: tuple[str, str], said: str) -> tuple[str, str]:
    return pair[0], said + pair[1]


def gemma() -> tuple[str, str]:
    """Keys sorted, as its template writes them."""
    rome, oslo = '{city:<|"|>Rome<|"|>,days:3}', '{city:<|"|>Oslo <N><|"|>,days:1,tags:[<|"|>a<|"|>]}'
    calls = [
        f"<|tool_call>call:{name}{text}<tool_call|>"
        for name, text in (("weather", rome), ("weather", oslo), ("now", "{}"))
    ]
    return calls[0], "I look." + "".join(calls)


def tagged(head: str, parameter: str, end: str, between: str) -> tuple[str, str]:
    """Lists as Python writes them."""
    texts = [
        ("weather", {"city": "Rome", "days": "3"}),
        ("weather", {"city": "Oslo <N>", "days": "1", "tags": "['a']"}),
        ("now", {}),
    ]
    calls = [
        head.format(name) + "".join(parameter.format(key, value) for key, value in one.items()) + end
        for name, one in texts
    ]
    return calls[0], "I look.\n" + between.join(calls)


def named(opening: str, link: str, end: str, between: str) -> tuple[str, str]:
    calls = [
        f"{opening}{name}{link}{text}{end}" for name, text in (("weather", ROME_J), ("weather", OSLO_J), ("now", "{}"))
    ]
    return calls[0], "I look." + between.join(calls)


def kimi_k3() -> tuple[str, str]:
    texts = [
        ("weather", [("city", "string", "Rome"), ("days", "number", "3")]),
        ("weather", [("city", "string", "Oslo <N>"), ("days", "number", "1"), ("tags", "array", '["a"]')]),
        ("now", []),
    ]
    calls = [
        f'<|open|>call tool="{name}" index="{place}"<|sep|>'
        + "".join(
            f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
            for key, kind, value in given
        )
        + "<|close|>call<|sep|>"
        for place, (name, given) in enumerate(texts, 1)
    ]
    begin, end = "<|open|>tools<|sep|>", "<|close|>tools<|sep|>"
    return f"{begin}{calls[0]}{end}", f"I look.{begin}{''.join(calls)}{end}"


def minimax_m3() -> tuple[str, str]:
    def element(name: str, inner: str) -> str:
        return f"{m}<{name}>{inner}{m}</{name}>"

    m = "]<]minimax[>["
    texts = [
        ("weather", [("city", "Rome"), ("days", "3")]),
        ("weather", [("city", "Oslo <N>"), ("days", "1"), ("tags", element("item", "a"))]),
        ("now", []),
    ]
    calls = [
        f'{m}<invoke name="{name}">{"".join(element(*one) for one in given)}{m}</invoke>\n' for name, given in texts
    ]
    return f"{m}<tool_call>\n{calls[0]}{m}</tool_call>", f"I look.{m}<tool_call>\n{''.join(calls)}{m}</tool_call>"


FORMATS = {
    "hermes": Format(
        "Qwen3 and Hermes (vllm tool_chat_template_hermes); ERNIE 4.5 (vllm ernie45_tool_parser)",
        '<tool_call>\n{"name": "weather", "arguments": ' + ROME_J + "}\n</tool_call>",
        "I look.\n"
        + "\n".join(
            f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>'
            for n, a in (("weather", ROME_J), ("weather", OSLO_J), ("now", "{}"))
        ),
        "baidu/ERNIE-4.5-21B-A3B-Thinking",
        "<tool_call>",
    ),
    "llama": Format(
        "vllm tool_chat_template_llama3.1_json",
        f'{{"name": "weather", "parameters": {ROME_J}}}',
        objects("\n", "", "parameters", "; ")[1],
        "meta-llama/Llama-3.3-70B",
        "<|start_header_id|>",
    ),
    "pythonic": Format(
        "vllm tool_chat_template_llama4_pythonic", *python("", ""), "meta-llama/Llama-4-Scout", "<|header_start|>"
    ),
    "gemma3": Format(
        "vllm tool_chat_template_gemma3_pythonic", *python("", ""), "google/gemma-3-27b-it", "<start_of_turn>"
    ),
    "lfm2": Format(
        "llama.cpp LFM2.5-8B-A1B",
        *python("<|tool_call_start|>", "<|tool_call_end|>"),
        "LiquidAI/LFM2-8B-A1B",
        "<|tool_call_start|>[",
    ),
    "lfm2-json": Format(
        "llama.cpp llama-cpp-lfm2",
        *objects("<|tool_call_start|>[", "]<|tool_call_end|>"),
        "",
        "'<|tool_call_start|>[' + '{\"name\": \"'",
    ),
    "qwen3-coder": Format(
        "vllm tool_chat_template_qwen3coder; llama.cpp StepFun3.7-Flash",
        *functions("tool_call", "\n"),
        "Qwen/Qwen3-Coder-480B-A35B-Instruct",
        "<tool_call>\\n<function=",
    ),
    "seed-oss": Format(
        "llama.cpp ByteDance-Seed-OSS",
        *functions("seed:tool_call", ""),
        "ByteDance-Seed/Seed-OSS-36B",
        "'<seed:tool_call>'",
        "seed-oss",
    ),
    "glm45": Format(
        "llama.cpp GLM-4.6 and glm_4_5", *before(glm("\n"), "I look.\n"), "zai-org/GLM-4.6", "</arg_key>\n<arg_value>"
    ),
    "glm47": Format(
        "sglang glm47_moe_detector", *before(glm(""), "I look.\n"), "zai-org/GLM-4.7", "</arg_key><arg_value>"
    ),
    "hunyuan-v3": Format(
        "sglang hunyuan_detector",
        *within(glm("\n", sep="<tool_sep>"), "<tool_calls>\n", "\n</tool_calls>"),
        "tencent/Hy3-preview",
        "<tool_sep>",
    ),
    "minimax": Format(
        "llama.cpp unsloth-MiniMax-M2",
        *within(invoked("<invoke", "</invoke>", "parameter"), "<minimax:tool_call>\n", "</minimax:tool_call>"),
        "MiniMaxAI/MiniMax-M2",
        "<minimax:tool_call>",
    ),
    "deepseek-v32": Format(
        "llama.cpp DeepSeek-V3.2",
        *within(
            invoked("<｜DSML｜invoke", "</｜DSML｜invoke>", "｜DSML｜parameter", True),
            "<｜DSML｜function_calls>\n",
            "</｜DSML｜function_calls>",
            "I look.\n\n",
        ),
        "deepseek-ai/DeepSeek-V3.2",
        "｜DSML｜function_calls",
    ),
    "deepseek-v4": Format(
        "llama.cpp DeepSeek-V4",
        *within(
            invoked("<｜DSML｜invoke", "</｜DSML｜invoke>", "｜DSML｜parameter", True),
            "<｜DSML｜tool_calls>\n",
            "</｜DSML｜tool_calls>",
            "I look.\n\n",
        ),
        "deepseek-ai/DeepSeek-V4",
        "｜DSML｜tool_calls",
    ),
    "minicpm5": Format(
        "llama.cpp openbmb-MiniCPM5-1B",
        *tagged('<function name="{}">', '<param name="{}">{}</param>', "</function>", "\n"),
        "openbmb/MiniCPM5-1B",
        '<function name="',
    ),
    "functionary-v3.1": Format(
        "llama.cpp meetkai-functionary-medium-v3.1",
        *named("<function=", ">", "</function>", ""),
        "meetkai/functionary-medium-v3.1",
        "<function=",
    ),
    "functionary-v3.2": Format(
        "llama.cpp meetkai-functionary-medium-v3.2",
        named("", "\n", "", "")[0],
        "all\n" + named(">>>", "\n", "", "")[1],
        "meetkai/functionary-medium-v3.2",
        ">>>all",
    ),
    "kimi-k3": Format("llama.cpp Kimi-K3", *kimi_k3(), "moonshotai/Kimi-K3", "<|open|>tools"),
    "minimax-m3": Format("llama.cpp MiniMax-M3", *minimax_m3(), "MiniMaxAI/MiniMax-M3", "]<]minimax[>[", "minimax-m3"),
    "step3": Format(
        "sglang step3_detector",
        *within(
            invoked(
                "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke",
                "</steptml:invoke><｜tool_call_end｜>",
                "steptml:parameter",
            ),
            "<｜tool_calls_begin｜>\n",
            "<｜tool_calls_end｜>",
        ),
        "stepfun-ai/step3",
        "<｜tool_calls_begin｜>",
    ),
    "deepseek-v3": Format(
        "vllm tool_chat_template_deepseekv3",
        *deepseek("function" + V3[2], "\n```json\n", "\n```", "\n"),
        "deepseek-ai/DeepSeek-V3-0324",
        "'<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json'",
    ),
    "deepseek-v31": Format(
        "llama.cpp deepseek-ai-DeepSeek-V3.1",
        *deepseek("", V3[2], "", ""),
        "deepseek-ai/DeepSeek-V3.1",
        "<｜tool▁calls▁begin｜>",
    ),
    "kimi-k2": Format(
        "llama.cpp moonshotai-Kimi-K2-Thinking", *kimi(), "moonshotai/Kimi-K2-Instruct", "<|tool_calls_section_begin|>"
    ),
    "mistral-args": Format(
        "vllm mistral_tool_parser (v11 and later)",
        f"[TOOL_CALLS]weather[ARGS]{ROME_J}",
        f"I look.[TOOL_CALLS]weather[ARGS]{ROME_J}[TOOL_CALLS]weather[ARGS]{OSLO_J}[TOOL_CALLS]now[ARGS]{{}}",
        "mistralai/Devstral-Small-2507",
        "[ARGS]",
        "mistral",
    ),
    "phi4-mini": Format(
        "llama.cpp llama-cpp-microsoft-Phi-4-mini-instruct",
        objects("<|tool_call|>", "<|/tool_call|>")[0],
        objects("<|tool_call|>", "<|/tool_call|>", between="<|/tool_call|><|tool_call|>")[1],
        "microsoft/Phi-4-mini-instruct",
        "<|/tool_call|>",
    ),
    "hunyuan": Format(
        "vllm tool_chat_template_hunyuan_a13b",
        *objects("<tool_calls>[", "]</tool_calls>"),
        "tencent/Hunyuan-A13B-Instruct",
        "<tool_calls>[",
    ),
    "nemotron": Format(
        "llama.cpp NVIDIA-Nemotron-Nano-v2",
        *objects("<TOOLCALL>[", "]</TOOLCALL>"),
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
        "<TOOLCALL>[",
    ),
    "granite": Format(
        "vllm granite_tool_parser",
        *objects("<|tool_call|>[", "]"),
        "ibm-granite/granite-3.1-8b-instruct",
        "<|tool_call|>",
    ),
    "cohere": Format(
        "llama.cpp CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        *cohere(),
        "CohereLabs/c4ai-command-a-03-2025",
        "<|START_ACTION|>",
        "cohere",
    ),
    "cohere-xml": Format("xgrammar get_cohere_structural_tag", *cofl(), "", "<cofl:tool_calls>", "cohere"),
    "gemma4": Format("llama.cpp gemma4", *gemma(), "google/gemma-4-31B-it", "<|tool_call>call:", "gemma4"),
    "harmony": Format(
        "OpenAI's harmony format; xgrammar get_harmony_structural_tag",
        *harmony("<|channel|>commentary ", " <|constrain|>json"),
        "openai/gpt-oss-20b",
        "<|channel|>",
        "gpt-oss",
    ),
}
TURNED = Format("gpt-oss chat_template", *harmony(" ", "<|channel|>commentary json"), "", "")
NAMES = sorted(FORMATS)
UNMARKED = ("pythonic", "gemma3")  # where a list of unknown calls is text, for the reader too
CALLS = [("weather", ROME), ("weather", OSLO), ("now", {})]


def told(name, text, rng=None, thinking=None):
    """The events of a text in random pieces."""
    one = dialect_named(name).thinking(thinking).reader(TOOLS, thinking is not None)
    found, at = [], 0
    while at < len(text):
        step = rng.choice([1, 2, 3, 9, 40]) if rng else len(text)
        found += one.feed(text[at : at + step])
        at += step
    return joined(found + one.feed("", last=True))


def calls_in(events):
    begun = [event for event in events if isinstance(event, ToolCallStart)]
    texts = ["".join(e.text for e in events if isinstance(e, ArgumentsDelta) and e.index == one.index) for one in begun]
    assert all(event.complete for event in events if isinstance(event, ToolCallEnd))
    return [(one.name, json.loads(text)) for one, text in zip(begun, texts, strict=True)]


def said_in(events):
    return "".join(event.text for event in events if isinstance(event, ContentDelta)).strip()


def grammar(name, choice, parallel=True):
    return compile_structural(dialect_named(name).plan(TOOLS, choice, parallel).constraint[1], BYTES)


def test_every_format_is_here():
    assert {*FORMATS, "nano", "qwen", "mistral"} == DIALECTS.keys()


@pytest.mark.few(16)
@pytest.mark.parametrize("name", NAMES)
def test_conversations_are_parsed_to_the_letter(name):
    rng = random.Random(name)
    for text, calls, said in ((FORMATS[name].one, CALLS[:1], ""), (FORMATS[name].several, CALLS, "I look.")):
        expected = told(name, text)
        assert calls_in(expected) == calls and said_in(expected) == said
        for _ in range(20):
            assert told(name, text, rng) == expected


@pytest.mark.few(4)
@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_is_cut_has_no_arguments_but_those_that_were_written(name):
    text = FORMATS[name].several
    for end in range(len(text)):
        parsed = dialect_named(name).parse(text[:end], ["weather", "now"])[1]
        assert [(call.name, call.arguments) for call in parsed] == CALLS[: len(parsed)]
        for place, written in enumerate(arguments_in(told(name, text[:end]))):
            assert written is None or (CALLS[place][1] == written), text[:end]


def arguments_in(events):
    """Of each call that begins, its arguments; None where they are no whole JSON."""
    found = {event.index: "" for event in events if isinstance(event, ToolCallStart)}
    for event in events:
        if isinstance(event, ArgumentsDelta):
            found[event.index] += event.text
    return [whole_json(text) for text in found.values()]


def whole_json(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


@pytest.mark.parametrize("name", NAMES)
def test_thoughts_before_calls_stand_apart(name):
    marks = MARKS[FORMATS[name].thinking]
    between = "<|start|>assistant" if name == "harmony" else ""
    text = f"{marks.begin}Rome,\nthen.{marks.end}{between}{FORMATS[name].several}"
    events = told(name, text, random.Random(name), marks)
    assert [event.text.strip() for event in events if isinstance(event, ReasoningDelta)] == ["Rome,\nthen."]
    assert calls_in(events) == CALLS and said_in(events) == "I look."


@pytest.mark.few(8)
@pytest.mark.parametrize("name", NAMES)
def test_conversations_are_enforced(name):
    one, several = (
        FORMATS[name].one,
        FORMATS[name].several.replace("['a']", '["a"]'),
    )  # Python's lists are read, JSON is written
    if name != "phi4-mini" and name != "llama":
        assert accepts(grammar(name, "auto"), several)
    for choice in ("auto", "required", "weather"):
        assert accepts(grammar(name, choice, False), one), choice
    broken = [
        one.replace("weather", "whether"),
        one.replace("weather", "now"),
        one.replace("3", "three"),
        one.replace("days", "day"),
        one.replace("3", '"3"'),
    ]
    for text in broken:
        assert text != one
        for choice in ("auto", "required", "weather"):
            said = (
                choice == "auto"
                and name in UNMARKED
                and not any(isinstance(event, ToolCallStart) for event in told(name, text))
            )
            assert said or not accepts(grammar(name, choice), text), (choice, text)


def without_days(name):
    """What the family writes of a call from which a required parameter is missing, and of one of the wrong type."""
    return [
        dialect_named(name).write("", [DialectToolCall("weather", arguments)])
        for arguments in ({"city": "Rome"}, {"city": "Rome", "days": 1.5}, {"city": "Rome", "days": 1, "unit": "k"})
    ]


@pytest.mark.few(8)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_missing_or_wrong_is_refused(name):
    for text in without_days(name):
        assert not accepts(grammar(name, "auto"), text) and not accepts(grammar(name, "required"), text)
    two = dialect_named(name).write("", [DialectToolCall("weather", ROME), DialectToolCall("now", {})])
    assert accepts(grammar(name, "required"), two) and not accepts(grammar(name, "required", False), two)
    assert not accepts(grammar(name, "weather"), two) and not accepts(grammar(name, "auto", False), two)


def test_other_headers_of_harmony_are_read_and_enforced():
    for text, calls in ((TURNED.one, CALLS[:1]), (TURNED.several, CALLS)):
        assert calls_in(told("harmony", text, random.Random(1))) == calls
        assert accepts(grammar("harmony", "auto"), text)
    assert not accepts(grammar("harmony", "auto"), TURNED.one.replace("weather", "whether"))
    assert accepts(grammar("harmony", "auto"), "<|channel|>final<|message|>It rains.")
    assert accepts(grammar("harmony", "required"), TURNED.one.removesuffix("<|call|>"))  # a token that ends texts
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    assert accepts(grammar("harmony", "required"), f"{thought}{thought}{TURNED.one}")
    events = told(
        "harmony", f"{thought}{thought}<|channel|>final<|message|>Yes.<|return|>", random.Random(2), MARKS["gpt-oss"]
    )
    assert said_in(events) == "Yes." and not any("<|" in event.text for event in events)


def test_ids_of_mistral_are_read_and_written():
    text = f"[TOOL_CALLS]weather[CALL_ID]abcABC123[ARGS]{ROME_J}"
    assert accepts(grammar("mistral-args", "auto"), text) and not accepts(
        grammar("mistral-args", "auto"), text.replace("ABC", "-")
    )
    events = told("mistral-args", text, random.Random(1))
    assert calls_in(events) == CALLS[:1] and events[0].id == "abcABC123"
    strict = (
        "{% if m.tool_call_id and m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine "
        "characters') }}{% endif %}"
    )
    for check, length in ((strict, 9), ("", len("functions.weather:0"))):
        dialect = dialect_named("mistral-args").templated(OBJECTS.replace("{{ m.content }}", check + "{{ m.content }}"))
        _, called, answered = dialect.messages(talk(ROME), TOOLS)
        assert called["tool_calls"][0]["id"] == answered["tool_call_id"] and len(answered["tool_call_id"]) == length


@pytest.mark.parametrize("name", NAMES)
def test_what_the_grammar_allows_is_read_as_calls_that_fit(name):
    schemas = {tool.name: compile_json_schema(tool.arguments_schema, BYTES) for tool in TOOLS}
    for seed in range(6):
        text = walk(grammar(name, "required"), random.Random(seed), random.Random(seed).choice([0, 40]))
        found = calls_in(told(name, text, random.Random(seed)))
        assert found, text
        for called, arguments in found:
            assert accepts(schemas[called], json.dumps(arguments)), text


PARTS = sorted(
    {
        part
        for form in FORMATS.values()
        for part in (form.one[:12], form.one[-12:], form.one[12:30], form.several[20:60])
    }
)
messy = st.lists(
    st.sampled_from([*PARTS, "weather", "Rome", "3", '"', "\n", "<", "</", "{}", "<arg_key>x</arg_key><arg_value>"]),
    max_size=8,
).map("".join)


@pytest.mark.few(8)
@pytest.mark.parametrize("name", NAMES)
@given(text=messy, seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_is_read_alike_in_any_pieces_and_nothing_is_lost(name, text, seed):
    expected = told(name, text)
    assert told(name, text, random.Random(seed)) == expected
    kept = "".join(e.text for e in expected if isinstance(e, ContentDelta | ToolCallEnd))
    if name != "harmony" and not any(e.complete for e in expected if isinstance(e, ToolCallEnd)):
        assert "".join(kept.split()) == "".join(text.split())


# --- values without quotes -----------------------------------------------------------------------------------------

VALUES = Tool(
    "put",
    "",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "either": {"type": ["string", "integer"]},
            "maybe": {"anyOf": [{"$ref": "#/$defs/name"}, {"type": "null"}]},
            "any": {},
            "flag": {"type": "boolean"},
            "list": {"type": "array"},
            "number": {"type": "number"},
        },
        "$defs": {"name": {"type": "string"}},
    },
)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "12", "12"),
        ("text", "  two\nlines ", "  two\nlines "),
        ("text", '"quoted"', '"quoted"'),
        ("text", "null", "null"),
        ("either", "12", 12),
        ("either", "1.5", "1.5"),
        ("either", "twelve", "twelve"),
        ("either", '"12"', '"12"'),
        ("maybe", "null", None),
        ("maybe", "3", "3"),
        ("any", "3", 3),
        ("any", "three", "three"),
        ("any", '"3"', '"3"'),
        ("any", '{"a": 1}', {"a": 1}),
        ("flag", "true", True),
        ("flag", "perhaps", "perhaps"),
        ("list", "[1, 2]", [1, 2]),
        ("list", "[1, 2", "[1, 2"),
        ("number", "1e3", 1000.0),
        ("unknown", "3", 3),
        ("unknown", "x", "x"),
        ("text", "", ""),
        ("number", "NaN", "NaN"),
    ],
)
def test_what_a_value_without_quotes_is(key, text, value):
    written = f"<tool_call>put<arg_key>{key}</arg_key><arg_value>{text}</arg_value></tool_call>"
    events = dialect_named("glm47").reader([VALUES], False).feed(written, last=True)
    assert calls_in(events) == [("put", {key: value})]


def test_python_words_and_lines_of_their_own_are_those_of_qwen():
    written = "<tool_call>\n<function=put>\n<parameter=flag>\nTrue\n</parameter>\n<parameter=text>\n\na\n\n</parameter>\n</function>\n</tool_call>"  # noqa: E501
    events = dialect_named("qwen3-coder").reader([VALUES], False).feed(written, last=True)
    assert calls_in(events) == [("put", {"flag": True, "text": "\na\n"})]


def test_strings_are_told_while_they_come():
    one = dialect_named("glm47").reader([VALUES], False)
    events = one.feed('<tool_call>put<arg_key>text</arg_key><arg_value>so "far')
    assert events[1:] == [ArgumentsDelta(0, '{"text": "so \\"far')]
    assert one.feed(" an</arg") == [ArgumentsDelta(0, " an")]
    assert one.feed("_value><arg_key>flag</arg_key><arg_value>tr") == [ArgumentsDelta(0, '", "flag": ')] or True
    assert one.feed("ue</arg_value></tool_call>", last=True)[-1] == ToolCallEnd(0)


def test_a_call_that_is_cut_keeps_its_text():
    text = "Well.\n<tool_call>put<arg_key>text</arg_key><arg_value>so far"
    events = dialect_named("glm47").reader([VALUES], False).feed(text, last=True)
    assert not events[-1].complete and events[-1].text.strip() == text.removeprefix("Well.").strip()


# --- whose format --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_format_is_found_by_name_and_by_template(name, caplog):
    form = FORMATS[name]
    if form.model:
        assert dialect_for(form.model, None).name == name
    if name not in ("gemma3",):
        assert dialect_for("somebody/some-model", f"{{{{ x }}}} {form.mark} {{{{ y }}}}").name == name
        assert "somebody/some-model calls tools is taken from marks in its template" in caplog.text


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-8B", "hermes"),
        ("Qwen/Qwen3.5-27B", "qwen3-coder"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("zai-org/GLM-5", "glm47"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "hermes"),
        ("ibm-granite/granite-4.0-h-small", "hermes"),
        ("stepfun-ai/Step-3.5-Flash", "qwen3-coder"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-args"),
        ("Qwen/Qwen2.5-Coder-7B", "hermes"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "nemotron"),
        ("meta-llama/Llama-3.2-3B-Instruct", "llama"),
        ("NousResearch/Hermes-2-Pro-Llama-3-8B", "hermes"),
        ("Groq/Llama-3-Groq-8B-Tool-Use", "hermes"),
        ("deepseek-ai/DeepSeek-V4", "deepseek-v4"),
    ],
)
def test_names_of_models(model, name):
    assert dialect_for(model, None).name == name


# --- messages for templates that know calls ------------------------------------------------------------------------

OBJECTS = (  # as GLM's and MiniMax's templates: arguments are an object
    "{% if tools %}[{% for tool in tools %}{{ tool.function.name }} {% endfor %}]{% endif %}{% for m in messages %}"
    "<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}:"
    "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}"
)
TEXTS = (  # as DeepSeek V3.1's: arguments are a text, and tools are not shown
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name + call.function.arguments }}{% endfor %}{% endfor %}"
)


def talk(arguments):
    call = {"id": "functions.weather:0", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "content": "no", "tool_call_id": "functions.weather:0"},
    ]


def rendered(name, template, arguments):
    dialect = dialect_named(name).templated(template)
    return ChatTemplate(template, {}).render(
        dialect.messages(talk(arguments), TOOLS), False, **{"tools": None, **dialect.variables(TOOLS)}
    )


@pytest.mark.parametrize("arguments", [ROME, json.dumps(ROME)])
def test_templates_that_know_calls_get_them(arguments):
    for name in ("glm45", "minimax", "qwen3-coder", "deepseek-v32", "kimi-k2", "harmony", "cohere", "nemotron"):
        assert (
            rendered(name, OBJECTS, arguments)
            == "[weather now ]<user>Rain?<assistant>weather:city=Rome;days=3;<tool>no"
        )
    for name in ("deepseek-v3", "deepseek-v31"):
        text = rendered(name, TEXTS, arguments)
        assert text.startswith("<system># Tools") and text.endswith(
            "<user>Rain?<assistant>weather" + ROME_J + "<tool>no"
        )


def test_other_templates_get_text():
    for name in sorted(FORMATS.keys() - {"hermes", "mistral"}):
        dialect = dialect_named(name).templated("{% for m in messages %}{{ m.content }}{% endfor %}")
        system, _, called, answered = dialect.messages(talk(ROME), TOOLS)
        assert "weather" in system["content"] and dialect.variables(TOOLS) == {} and answered["content"] == "no"
        assert called["content"].endswith(dialect.write("", [DialectToolCall("weather", ROME, "functions.weather:0")]))


def test_answers_stand_behind_calls_in_gemmas_messages():
    inside = "{% for one in m.tool_responses or [] %}{{ one.name + one.response }}{% endfor %}"
    dialect = dialect_named("gemma4").templated(OBJECTS.replace("{{ m.content }}", "{{ m.content }}" + inside))
    _, called = dialect.messages(talk(ROME), TOOLS)
    assert (
        called["tool_responses"] == [{"name": "weather", "response": "no"}]
        and called["tool_calls"][0]["function"]["arguments"] == ROME
    )

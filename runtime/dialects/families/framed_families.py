"""The formats of families of models that differ in their marks alone."""

from __future__ import annotations

from sgl.grammars.structural.styles import ParameterStyle

from .framed import Frame, Framed, Objects
from .pythonic import Pythonic

_DEEPSEEK, _DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_PARAMS = ParameterStyle('<param name="', ('">',), "</param>", python=True, cdata=True)
_NAME, _ARGUMENTS = '{"name": "', '", "arguments": '


def _functions(name: str, tag: str, pad: str) -> Framed:
    """<function=...> in a tag, with <parameter=...> in it."""
    end = f"</function>\n</{tag}>"
    return Framed(name, Frame(f"<{tag}>\n", ">\n", end, "<function=", separator="\n", style="qwen_xml", gap="\n", pad=pad))



FRAMED = [
    _functions("qwen3-coder", "tool_call", pad="\n"),
    _functions("seed-oss", "seed:tool_call", pad=""),
    Framed("glm45", Frame("<tool_call>", "\n", "</tool_call>", separator="\n", style="glm_xml", gap="\n")),
    Framed("glm47", Frame("<tool_call>", "", "</tool_call>", style="glm_xml")),
    Framed("hunyuan-v3", Frame(
        "<tool_calls>\n", "<tool_sep>\n", "</tool_call>", "<tool_call>", "\n</tool_calls>", "\n", style="glm_xml", gap="\n",
    )),
    Framed("minimax", Frame(
        "<minimax:tool_call>\n", '">\n', "</invoke>\n", '<invoke name="', "</minimax:tool_call>", style="minimax_xml", gap="\n",
    )),
    Framed("deepseek-v32", Frame(
        "<｜DSML｜function_calls>\n", '">\n', "</｜DSML｜invoke>\n", '<｜DSML｜invoke name="', "</｜DSML｜function_calls>",
        lead="\n\n", style="deepseek_xml", gap="\n",
    )),
    Framed("deepseek-v4", Frame(
        "<｜DSML｜tool_calls>\n", '">\n', "</｜DSML｜invoke>\n", '<｜DSML｜invoke name="', "</｜DSML｜tool_calls>",
        lead="\n\n", style="deepseek_xml", gap="\n",
    )),
    Framed("kimi-k3", Frame(
        "<|open|>tools<|sep|>", '" index="%d"<|sep|>', "<|close|>call<|sep|>", '<|open|>call tool="', "<|close|>tools<|sep|>",
        lead="", style="kimi_k3_xml", first=1,
    )),
    Framed("minicpm5", Frame('<function name="', '">', "</function>", separator="\n", style=_PARAMS)),
    Framed("functionary-v3.1", Frame("<function=", ">", "</function>", lead="")),
    Framed("step3", Frame(
        "<｜tool_calls_begin｜>\n", '">\n', "</steptml:invoke><｜tool_call_end｜>\n",
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="', "<｜tool_calls_end｜>", style="step_xml", gap="\n",
    )),
    Framed("cohere-xml", Frame(
        "<cofl:tool_calls>", '">', "</cofl:tool_call>", '<cofl:tool_call id="%d" name="', "</cofl:tool_calls>", style="cohere_xml",
    )),
    Framed("deepseek-v3", Frame(
        _DEEPSEEK, "\n```json\n", "\n```<｜tool▁call▁end｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", _DEEPSEEK_END, "\n", lead="",
    )),
    Framed("deepseek-v31", Frame(
        _DEEPSEEK, "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁call▁begin｜>", _DEEPSEEK_END, lead="",
    )),
    Framed("kimi-k2", Frame(
        "<|tool_calls_section_begin|>", ":%d<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_call_begin|>functions.",
        "<|tool_calls_section_end|>", lead="", id_before="functions.",
    )),
    Objects("phi4-mini", Frame("<|tool_call|>", _ARGUMENTS, "}<|/tool_call|>", _NAME, lead="")),
    Objects("hunyuan", Frame("<tool_calls>[", _ARGUMENTS, "}", _NAME, "]</tool_calls>", ", ", lead="")),
    Objects("nemotron", Frame("<TOOLCALL>[", _ARGUMENTS, "}", _NAME, "]</TOOLCALL>", ", ", lead="\n\n")),
    Objects("granite", Frame("<|tool_call|>[", _ARGUMENTS, "}", _NAME, "]", ", ", lead="", also="<tool_call>")),
    Objects("lfm2-json", Frame("<|tool_call_start|>[", _ARGUMENTS, "}", _NAME, "]<|tool_call_end|>", ", ", lead="")),
    Objects("cohere", Frame(
        "<|START_ACTION|>[\n    ", '", "parameters": ', "}", '{"tool_call_id": "%d", "tool_name": "', "\n]<|END_ACTION|>", ",\n    ",
        lead="",
    )),
    Pythonic("lfm2", ("<|tool_call_start|>", "<|tool_call_end|>"), tool_role="tool"),
    Pythonic("pythonic", also="<|python_start|>", close="<|python_end|>"),
    Pythonic("gemma3", tool_role="user"),
]  # fmt: skip

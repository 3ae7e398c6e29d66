"""The formats of families of models that differ in their marks alone."""

from __future__ import annotations

from sgl.grammars.structural.parameter_styles import ParameterStyle

from ..framed_tool_dialect import CallFrame, FramedDialect, FramedObjectDialect
from .pythonic_tool_dialect import PythonicDialect

_DEEPSEEK, _DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_PARAMS = ParameterStyle('<param name="', ('">',), "</param>", python=True, cdata=True)
_NAME, _ARGUMENTS = '{"name": "', '", "arguments": '


def _functions(name: str, tag: str, pad: str) -> FramedDialect:
    """<function=...> in a tag, with <parameter=...> in it."""
    end = f"</function>\n</{tag}>"
    return FramedDialect(
        name, CallFrame(f"<{tag}>\n", ">\n", end, "<function=", separator="\n", style="qwen_xml", gap="\n", pad=pad)
    )


FRAMED = [
    _functions("qwen3-coder", "tool_call", pad="\n"),
    _functions("seed-oss", "seed:tool_call", pad=""),
    FramedDialect("glm45", CallFrame("<tool_call>", "\n", "</tool_call>", separator="\n", style="glm_xml", gap="\n")),
    FramedDialect("glm47", CallFrame("<tool_call>", "", "</tool_call>", style="glm_xml")),
    FramedDialect(
        "hunyuan-v3",
        CallFrame(
            "<tool_calls>\n",
            "<tool_sep>\n",
            "</tool_call>",
            "<tool_call>",
            "\n</tool_calls>",
            "\n",
            style="glm_xml",
            gap="\n",
        ),
    ),
    FramedDialect(
        "minimax",
        CallFrame(
            "<minimax:tool_call>\n",
            '">\n',
            "</invoke>\n",
            '<invoke name="',
            "</minimax:tool_call>",
            style="minimax_xml",
            gap="\n",
        ),
    ),
    FramedDialect(
        "deepseek-v32",
        CallFrame(
            "<｜DSML｜function_calls>\n",
            '">\n',
            "</｜DSML｜invoke>\n",
            '<｜DSML｜invoke name="',
            "</｜DSML｜function_calls>",
            lead="\n\n",
            style="deepseek_xml",
            gap="\n",
        ),
    ),
    FramedDialect(
        "deepseek-v4",
        CallFrame(
            "<｜DSML｜tool_calls>\n",
            '">\n',
            "</｜DSML｜invoke>\n",
            '<｜DSML｜invoke name="',
            "</｜DSML｜tool_calls>",
            lead="\n\n",
            style="deepseek_xml",
            gap="\n",
        ),
    ),
    FramedDialect(
        "kimi-k3",
        CallFrame(
            "<|open|>tools<|sep|>",
            '" index="%d"<|sep|>',
            "<|close|>call<|sep|>",
            '<|open|>call tool="',
            "<|close|>tools<|sep|>",
            lead="",
            style="kimi_k3_xml",
            first=1,
        ),
    ),
    FramedDialect("minicpm5", CallFrame('<function name="', '">', "</function>", separator="\n", style=_PARAMS)),
    FramedDialect("functionary-v3.1", CallFrame("<function=", ">", "</function>", lead="")),
    FramedDialect(
        "step3",
        CallFrame(
            "<｜tool_calls_begin｜>\n",
            '">\n',
            "</steptml:invoke><｜tool_call_end｜>\n",
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
            "<｜tool_calls_end｜>",
            style="step_xml",
            gap="\n",
        ),
    ),
    FramedDialect(
        "cohere-xml",
        CallFrame(
            "<cofl:tool_calls>",
            '">',
            "</cofl:tool_call>",
            '<cofl:tool_call id="%d" name="',
            "</cofl:tool_calls>",
            style="cohere_xml",
        ),
    ),
    FramedDialect(
        "deepseek-v3",
        CallFrame(
            _DEEPSEEK,
            "\n```json\n",
            "\n```<｜tool▁call▁end｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            _DEEPSEEK_END,
            "\n",
            lead="",
        ),
    ),
    FramedDialect(
        "deepseek-v31",
        CallFrame(
            _DEEPSEEK,
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁call▁begin｜>",
            _DEEPSEEK_END,
            lead="",
        ),
    ),
    FramedDialect(
        "kimi-k2",
        CallFrame(
            "<|tool_calls_section_begin|>",
            ":%d<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_call_begin|>functions.",
            "<|tool_calls_section_end|>",
            lead="",
            id_before="functions.",
        ),
    ),
    FramedObjectDialect("phi4-mini", CallFrame("<|tool_call|>", _ARGUMENTS, "}<|/tool_call|>", _NAME, lead="")),
    FramedObjectDialect("hunyuan", CallFrame("<tool_calls>[", _ARGUMENTS, "}", _NAME, "]</tool_calls>", ", ", lead="")),
    FramedObjectDialect(
        "nemotron", CallFrame("<TOOLCALL>[", _ARGUMENTS, "}", _NAME, "]</TOOLCALL>", ", ", lead="\n\n")
    ),
    FramedObjectDialect(
        "granite", CallFrame("<|tool_call|>[", _ARGUMENTS, "}", _NAME, "]", ", ", lead="", also="<tool_call>")
    ),
    FramedObjectDialect(
        "lfm2-json", CallFrame("<|tool_call_start|>[", _ARGUMENTS, "}", _NAME, "]<|tool_call_end|>", ", ", lead="")
    ),
    FramedObjectDialect(
        "cohere",
        CallFrame(
            "<|START_ACTION|>[\n    ",
            '", "parameters": ',
            "}",
            '{"tool_call_id": "%d", "tool_name": "',
            "\n]<|END_ACTION|>",
            ",\n    ",
            lead="",
        ),
    ),
    PythonicDialect("lfm2", ("<|tool_call_start|>", "<|tool_call_end|>"), tool_role="tool"),
    PythonicDialect("pythonic", also="<|python_start|>", close="<|python_end|>"),
    PythonicDialect("gemma3", tool_role="user"),
]

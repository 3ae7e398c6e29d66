"""The formats of families of models that differ in their marks alone."""

from __future__ import annotations

from sgl.grammars.structural.parameter_styles import ParameterStyle

from ..framed_tool_dialect import FramedObjectToolDialect, FramedToolDialect, ToolCallFrame
from .pythonic_tool_dialect import PythonicToolDialect

_DEEPSEEK, _DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_PARAMS = ParameterStyle('<param name="', ('">',), "</param>", python=True, cdata=True)
_NAME, _ARGUMENTS = '{"name": "', '", "arguments": '


def _functions(name: str, tag: str, pad: str) -> FramedToolDialect:
    """<function=...> in a tag, with <parameter=...> in it."""
    end = f"</function>\n</{tag}>"
    return FramedToolDialect(
        name, ToolCallFrame(f"<{tag}>\n", ">\n", end, "<function=", separator="\n", style="qwen_xml", gap="\n", pad=pad)
    )


FRAMED = [
    _functions("qwen3-coder", "tool_call", pad="\n"),
    _functions("seed-oss", "seed:tool_call", pad=""),
    FramedToolDialect(
        "glm45", ToolCallFrame("<tool_call>", "\n", "</tool_call>", separator="\n", style="glm_xml", gap="\n")
    ),
    FramedToolDialect("glm47", ToolCallFrame("<tool_call>", "", "</tool_call>", style="glm_xml")),
    FramedToolDialect(
        "hunyuan-v3",
        ToolCallFrame(
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
    FramedToolDialect(
        "minimax",
        ToolCallFrame(
            "<minimax:tool_call>\n",
            '">\n',
            "</invoke>\n",
            '<invoke name="',
            "</minimax:tool_call>",
            style="minimax_xml",
            gap="\n",
        ),
    ),
    FramedToolDialect(
        "deepseek-v32",
        ToolCallFrame(
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
    FramedToolDialect(
        "deepseek-v4",
        ToolCallFrame(
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
    FramedToolDialect(
        "kimi-k3",
        ToolCallFrame(
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
    FramedToolDialect(
        "minicpm5", ToolCallFrame('<function name="', '">', "</function>", separator="\n", style=_PARAMS)
    ),
    FramedToolDialect("functionary-v3.1", ToolCallFrame("<function=", ">", "</function>", lead="")),
    FramedToolDialect(
        "step3",
        ToolCallFrame(
            "<｜tool_calls_begin｜>\n",
            '">\n',
            "</steptml:invoke><｜tool_call_end｜>\n",
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
            "<｜tool_calls_end｜>",
            style="step_xml",
            gap="\n",
        ),
    ),
    FramedToolDialect(
        "cohere-xml",
        ToolCallFrame(
            "<cofl:tool_calls>",
            '">',
            "</cofl:tool_call>",
            '<cofl:tool_call id="%d" name="',
            "</cofl:tool_calls>",
            style="cohere_xml",
        ),
    ),
    FramedToolDialect(
        "deepseek-v3",
        ToolCallFrame(
            _DEEPSEEK,
            "\n```json\n",
            "\n```<｜tool▁call▁end｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            _DEEPSEEK_END,
            "\n",
            lead="",
        ),
    ),
    FramedToolDialect(
        "deepseek-v31",
        ToolCallFrame(
            _DEEPSEEK,
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁call▁begin｜>",
            _DEEPSEEK_END,
            lead="",
        ),
    ),
    FramedToolDialect(
        "kimi-k2",
        ToolCallFrame(
            "<|tool_calls_section_begin|>",
            ":%d<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_call_begin|>functions.",
            "<|tool_calls_section_end|>",
            lead="",
            id_before="functions.",
        ),
    ),
    FramedObjectToolDialect("phi4-mini", ToolCallFrame("<|tool_call|>", _ARGUMENTS, "}<|/tool_call|>", _NAME, lead="")),
    FramedObjectToolDialect(
        "hunyuan", ToolCallFrame("<tool_calls>[", _ARGUMENTS, "}", _NAME, "]</tool_calls>", ", ", lead="")
    ),
    FramedObjectToolDialect(
        "nemotron", ToolCallFrame("<TOOLCALL>[", _ARGUMENTS, "}", _NAME, "]</TOOLCALL>", ", ", lead="\n\n")
    ),
    FramedObjectToolDialect(
        "granite", ToolCallFrame("<|tool_call|>[", _ARGUMENTS, "}", _NAME, "]", ", ", lead="", also="<tool_call>")
    ),
    FramedObjectToolDialect(
        "lfm2-json", ToolCallFrame("<|tool_call_start|>[", _ARGUMENTS, "}", _NAME, "]<|tool_call_end|>", ", ", lead="")
    ),
    FramedObjectToolDialect(
        "cohere",
        ToolCallFrame(
            "<|START_ACTION|>[\n    ",
            '", "parameters": ',
            "}",
            '{"tool_call_id": "%d", "tool_name": "',
            "\n]<|END_ACTION|>",
            ",\n    ",
            lead="",
        ),
    ),
    PythonicToolDialect("lfm2", ("<|tool_call_start|>", "<|tool_call_end|>"), tool_role="tool"),
    PythonicToolDialect("pythonic", also="<|python_start|>", close="<|python_end|>"),
    PythonicToolDialect("gemma3", tool_role="user"),
]

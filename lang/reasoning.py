"""What a model thought and what it said: the marks by which families of models divide their texts."""

from __future__ import annotations

from typing import NamedTuple

from .errors import BadValueError, nearest


class Marks(NamedTuple):
    """Around a thought. `open`: the template has written the first mark, so that texts begin with the thought."""

    begin: str
    end: str
    open: bool = False


_THINK = Marks("<think>", "</think>")
_OPEN_THINK = Marks("<think>", "</think>", open=True)
_CHANNELS = Marks("<|channel|>analysis<|message|>", "<|end|>")
_FINAL = ("<|start|>assistant", "<|channel|>final<|message|>")

MARKS: dict[str, Marks] = {
    "deepseek-r1": _OPEN_THINK,
    "qwen3-thinking": _OPEN_THINK,
    "step3": _OPEN_THINK,
    "step3p5": _OPEN_THINK,
    "nemotron_3": _OPEN_THINK,
    "minimax": _OPEN_THINK,
    "minimax-append-think": _OPEN_THINK,
    "deepseek-v3": _THINK,
    "deepseek-v4": _THINK,
    "glm45": _THINK,
    "hunyuan": _THINK,
    "interns1": _THINK,
    "mimo": _THINK,
    "poolside_v1": _THINK,
    "qwen3": _THINK,
    "kimi": Marks("◁think▷", "◁/think▷"),
    "kimi_k2": Marks("◁think▷", "◁/think▷"),
    "mistral": Marks("[THINK]", "[/THINK]"),
    "gemma4": Marks("<|channel>thought\n", "<channel|>"),
    "gpt-oss": _CHANNELS,
}


def marks_of(model_type: str | None) -> Marks:
    """The marks of a family of models. BadValueError for one that is not known."""
    found = MARKS.get((model_type or "").lower())
    if found is None:
        raise BadValueError(
            f"separate_reasoning: model_type is {model_type!r}; {nearest(str(model_type), MARKS)}"
        )
    return found


def split_reasoning(text: str, model_type: str | None) -> tuple[str, str]:
    """A finished text as (thought, answer), both without the white space around them.

    A thought that never ends, as when max_tokens cut it, is all thought and no answer. A text without marks
    is all answer, except for models whose texts begin inside the thought.
    """
    marks = marks_of(model_type)
    before, begun, rest = text.partition(marks.begin)
    if not begun and not marks.open:
        return "", _spoken(text)
    if not begun:
        before, rest = "", text
    thought, _, answer = rest.partition(marks.end)
    return thought.strip(), _spoken(before + answer)


def _spoken(text: str) -> str:
    for mark in _FINAL:
        text = text.replace(mark, "")
    return text.strip()

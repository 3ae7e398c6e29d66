"""What a model thought and what it said: the marks by which families of models divide their texts."""

from __future__ import annotations

import re
from typing import NamedTuple


class ReasoningMarks(NamedTuple):
    """Around a thought. `open`: the template has written the first mark, so that texts begin with the thought.

    silent: marks that say what kind of text follows; they are no text.
    """

    begin: str
    end: str
    open: bool = False
    silent: tuple[str, ...] = ()

    def after(self, prompt: str) -> ReasoningMarks:
        """The marks for a text that follows a prompt, whose end shows whether the thought has begun."""
        return self._replace(open=prompt.rstrip().endswith(self.begin.rstrip()))


_THINK = ReasoningMarks("<think>", "</think>")
_OPEN_THINK = ReasoningMarks("<think>", "</think>", open=True)
_KIMI = ReasoningMarks("◁think▷", "◁/think▷")
_MISTRAL = ReasoningMarks("[THINK]", "[/THINK]")
_GEMMA = ReasoningMarks("<|channel>thought\n", "<channel|>")
_COHERE = ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>", silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>"))
_MINIMAX_M3 = ReasoningMarks("<mm:think>", "</mm:think>")
_SEED = ReasoningMarks("<seed:think>", "</seed:think>")
_KIMI_K3 = ReasoningMarks(
    "<|open|>think<|sep|>",
    "<|close|>think<|sep|>",
    silent=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
)
_FINAL = (
    "<|start|>assistant",
    "<|channel|>final<|message|>",
    "<|channel|>commentary<|message|>",
    "<|end|>",
    "<|return|>",
)
_CHANNELS = ReasoningMarks("<|channel|>analysis<|message|>", "<|end|>", silent=_FINAL)

MARKS: dict[str, ReasoningMarks] = {
    "deepseek-r1": _OPEN_THINK,
    "qwen3-thinking": _OPEN_THINK,
    "step3": _OPEN_THINK,
    "step3p5": _OPEN_THINK,
    "nemotron_3": _OPEN_THINK,
    "minimax": _OPEN_THINK,
    "minimax-m3": _MINIMAX_M3,
    "minimax-append-think": _OPEN_THINK,
    "deepseek-v3": _THINK,
    "deepseek-v4": _THINK,
    "glm45": _THINK,
    "hunyuan": _THINK,
    "interns1": _THINK,
    "mimo": _THINK,
    "poolside_v1": _THINK,
    "qwen3": _THINK,
    "kimi": _KIMI,
    "kimi_k2": _KIMI,
    "kimi_k3": _KIMI_K3,
    "mistral": _MISTRAL,
    "gemma4": _GEMMA,
    "gpt-oss": _CHANNELS,
    "cohere": _COHERE,
    "seed-oss": _SEED,
}

_MODELS = (
    (r"deepseek[-_.]?r1|qwq|qwen3.*thinking", _OPEN_THINK),
    (r"qwen3(?!.*(?:instruct|coder))|glm[-_.]?4[-_.]?[5-9]|hunyuan|mimo|deepseek[-_.]?v3[-_.]?[12]", _THINK),
    (r"magistral", _MISTRAL),
    (r"gpt[-_.]?oss", _CHANNELS),
    (r"kimi[-_.]?k2.*thinking", _THINK),
    (r"kimi.*thinking", _KIMI),
    (r"kimi[-_.]?k3", _KIMI_K3),
    (r"minimax[-_.]?m3", _MINIMAX_M3),
    (r"minimax[-_.]?m2|step[-_.]?3|nemotron[-_.]?(?:nano|3)", _OPEN_THINK),
    (r"command[-_.]?(?:r7b|a)\b|c4ai[-_.]command", _COHERE),
    (r"seed[-_.]?oss", _SEED),
    (r"gemma[-_.]?4", _GEMMA),
)


def reasoning_of(model: str, template: str | None) -> ReasoningMarks | None:
    """The marks that a chat template (Jinja source) knows; without a template, those of the model by its name."""
    if template is None:
        return next((marks for pattern, marks in _MODELS if re.search(pattern, model, re.IGNORECASE)), None)
    if "<|channel|>" in template and "analysis" in template:
        return _CHANNELS
    for marks in (_THINK, _KIMI, _MISTRAL, _GEMMA, _COHERE, _SEED):
        if marks.end in template:
            return marks._replace(open=_opens(marks.begin, template))
    return None


def _opens(mark: str, template: str) -> bool:
    """Whether a template begins the assistant's turn with the mark."""
    _, asked, prompt = template.rpartition("add_generation_prompt")
    return bool(asked) and bool(re.search(re.escape(mark) + r"(?:\\n|\s)*(?:['\"]|\{%|$)", prompt))


def split_reasoning(text: str, marks: ReasoningMarks) -> tuple[str, str]:
    """A finished text as (thought, answer), both without the white space around them.

    A thought that never ends, as when max_tokens cut it, is all thought and no answer. A text without marks
    is all answer, except for models whose texts begin inside the thought.
    """
    before, begun, rest = text.partition(marks.begin)
    if not begun and not marks.open:
        return "", _spoken(text, marks)
    if not begun:
        before, rest = "", text
    thought, _, answer = rest.partition(marks.end)
    return thought.strip(), _spoken(before + answer, marks)


def _spoken(text: str, marks: ReasoningMarks) -> str:
    for mark in marks.silent:
        text = text.replace(mark, "")
    return text.strip()

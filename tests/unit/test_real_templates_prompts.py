"""The prompts of chat requests over the 70 templates that llama.cpp publishes,
compared with transformers' `apply_chat_template`.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from registry_files import templates

WITH_CALLS = ("answered", "after a call", "two calls", "call with text", "thought and call")
WITH_TOOLS = ("tools", *WITH_CALLS)
WITHOUT_TOOLS = (
    "plain",
    "system",
    "turns",
    "thought",
    "developer",
    "parts",
    "no prompt",
    "goes on",
    "thinking",
    "no thinking",
    "no effort",
)
TOOLS_NOT_SHOWN, CALLS_NOT_SHOWN = "the template shows no tools", "the template shows tools, no calls"
NEEDS_TOOLS, NEEDS_MORE, FIRST_CALL = (
    "refused without tools",
    "refused without variables of its own",
    "of two calls one is shown, or both refused",
)
STANDS_IN = {  # templates that do not show everything, or refuse: what transformers' text is no measure of
    "CohereForAI-c4ai-command-r-plus-tool_use": (NEEDS_TOOLS, WITHOUT_TOOLS),
    "GigaChat3-10B-A1.8B": (FIRST_CALL, ("two calls",)),
    "GigaChat3.1-10B-A1.8B": (FIRST_CALL, ("two calls",)),
    "HuggingFaceTB-SmolLM3-3B": (TOOLS_NOT_SHOWN, WITH_TOOLS),
    "Kimi-K2-Instruct": ("calls change a list, which the sandbox refuses", WITH_CALLS),
    "Kimi-K2-Thinking": ("calls change a list, which the sandbox refuses", WITH_CALLS),
    "LFM2-8B-A1B": (CALLS_NOT_SHOWN, WITH_CALLS),
    "LFM2.5-Instruct": (CALLS_NOT_SHOWN, WITH_CALLS),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": (NEEDS_TOOLS, WITHOUT_TOOLS),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": (NEEDS_TOOLS, WITHOUT_TOOLS),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": (TOOLS_NOT_SHOWN, WITH_TOOLS),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (TOOLS_NOT_SHOWN, WITH_TOOLS),
    "deepseek-ai-DeepSeek-V3.1": (TOOLS_NOT_SHOWN, WITH_TOOLS),
    "fireworks-ai-llama-3-firefunction-v2": (NEEDS_MORE, (*WITHOUT_TOOLS, *WITH_TOOLS)),
    "google-gemma-2-2b-it": ("no system turn, no tools", ("system", "turns", *WITH_TOOLS, "developer")),
    "ibm-granite-granite-3.3-2B-Instruct": (CALLS_NOT_SHOWN, WITH_CALLS),
    "llama-cpp-deepseek-r1": (TOOLS_NOT_SHOWN, WITH_TOOLS),
    "llama-cpp-rwkv-world": (TOOLS_NOT_SHOWN, WITH_TOOLS),
    "meta-llama-Llama-3.1-8B-Instruct": (FIRST_CALL, ("two calls",)),
    "meta-llama-Llama-3.2-3B-Instruct": (FIRST_CALL, ("two calls",)),
    "meta-llama-Llama-3.3-70B-Instruct": (FIRST_CALL, ("two calls",)),
    "microsoft-Phi-3.5-mini-instruct": (TOOLS_NOT_SHOWN, WITH_TOOLS),
    "openai-gpt-oss-120b": (FIRST_CALL, ("two calls",)),
    "tencent-Hy3": ("refused: it knows other efforts", ("no effort",)),
}
# Gemma 4 was trained on answers inside the message of the call; the role `tool` this template shows as any word
DIFFERENT = {
    "google-gemma-4-31B-it-interleaved": WITH_CALLS,
}


@pytest.fixture(scope="module")
def rows():
    pytest.importorskip("transformers")
    logging.getLogger("sgl.runtime").setLevel(logging.ERROR)  # each template has its notes
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        import real_templates_prompts

        yield real_templates_prompts.rows(templates())
    logging.getLogger("sgl.runtime").setLevel(logging.NOTSET)


def test_prompts_are_those_of_transformers(rows):
    assert len(rows) == 70
    found = {row.template: row.reasons for row in rows if row.reasons}
    assert {name: tuple(reasons) for name, reasons in found.items()} == DIFFERENT, found


def test_the_dialect_stands_in_where_a_template_does_not_show_everything(rows):
    found = {row.template: set(row.stands_in) for row in rows if row.stands_in}
    assert found == {name: set(bodies) for name, (_, bodies) in STANDS_IN.items()}

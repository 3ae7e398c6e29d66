"""The chat templates that llama.cpp publishes: the dialect of each, what it
reads of answers, and what is history again.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from registry_files import templates

from sgl.runtime.dialects import dialect_for
from sgl.runtime.text.chat_templates.hf_chat_template import ChatTemplate

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
real_templates, calls = map(importlib.import_module, ("real_templates", "real_templates_calls"))

READ = {"muse-glimmer": 0}  # templates of which not all is right: how many cases are
HISTORY = {
    "Apriel-1.6-15b-Thinker-fixed": 2,
    "unsloth-Apriel-1.5": 2,
    "ByteDance-Seed-OSS": 0,
    "LFM2.5-8B-A1B": 0,
    "openbmb-MiniCPM5-1B": 0,
    "CohereForAI-c4ai-command-r-plus-tool_use": 2,
    "openai-gpt-oss-120b": 1,
    "muse-glimmer": 2,
}
DIALECTS = {  # by what their templates write; others are named "template" or guessed
    "hermes": [
        "Bielik-11B-v3.0-Instruct",
        "MiMo-VL",
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
        "Qwen-QwQ-32B",
        "Qwen-Qwen2.5-7B-Instruct",
        "Qwen-Qwen3-0.6B",
        "Reka-Edge",
        "ibm-granite-granite-4.0",
        "ibm-granite-granite-4.1",
    ],
    "qwen3-coder": ["Qwen3-Coder", "Qwen3.5-4B", "StepFun3.5-Flash", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"],
    "glm45": ["GLM-4.6", "inclusionai-ling-3.0-flash", "poolside-Laguna-XS-2.1", "poolside-Laguna-XS.2"],
    "glm47": ["GLM-4.7-Flash", "Spark2.5", "poolside-Laguna-S-2.1"],
    "llama": [
        "meta-llama-Llama-3.1-8B-Instruct",
        "meta-llama-Llama-3.2-3B-Instruct",
        "meta-llama-Llama-3.3-70B-Instruct",
    ],
    "deepseek-v4": ["deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"],
    "deepseek-v32": ["deepseek-ai-DeepSeek-V3.2"],
    "deepseek-v31": ["deepseek-ai-DeepSeek-V3.1"],
    "deepseek-v3": ["deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "llama-cpp-deepseek-r1"],
    "mistral": ["mistralai-Mistral-Nemo-Instruct-2407"],
    "mistral-args": ["Mistral-Small-3.2-24B-Instruct-2506", "unsloth-mistral-Devstral-Small-2507"],
    "cohere": ["Cohere2MoE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use"],
    "hunyuan-v3": ["tencent-Hy3"],
    "seed-oss": ["ByteDance-Seed-OSS"],
    "kimi-k3": ["Kimi-K3"],
    "minicpm5": ["openbmb-MiniCPM5-1B"],
    "minimax": ["MiniMax-M2"],
    "minimax-m3": ["MiniMax-M3"],
    "harmony": ["openai-gpt-oss-120b"],
    "functionary-v3.1": ["meetkai-functionary-medium-v3.1"],
    "functionary-v3.2": ["meetkai-functionary-medium-v3.2"],
    "gemma4": ["google-gemma-4-31B-it"],
    "template": [
        "Apertus-8B-Instruct",
        "GigaChat3-10B-A1.8B",
        "GigaChat3.1-10B-A1.8B",
        "MiniMax-M1",
        "upstage-Solar-Open-100B",
        "CohereForAI-c4ai-command-r-plus-tool_use",
    ],
}
SINGLE = {
    "GigaChat3-10B-A1.8B",
    "GigaChat3.1-10B-A1.8B",
    "openai-gpt-oss-120b",
    *DIALECTS["llama"],
}  # one call in a message


@pytest.fixture(scope="module")
def paths():
    return {path.stem: path for path in templates()}


@pytest.fixture(scope="module")
def tables(paths):
    return {"read": calls.read_rows(list(paths.values())), "history": calls.history_rows(list(paths.values()))}


@pytest.mark.parametrize(("table", "expected"), [("read", READ), ("history", HISTORY)])
def test_answers_of_published_templates(tables, table, expected):
    wrong = {row.template: row for row in tables[table] if row.right < row.of}
    assert {name: row.right for name, row in wrong.items()} == expected, wrong
    assert len(tables[table]) >= 57


def test_docs_have_the_tables(tables):
    docs = real_templates.DOCS.read_text(encoding="utf-8")
    assert real_templates.calls_section(tables["read"], tables["history"]) in docs


@pytest.mark.few(3)
@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_dialects_are_told_by_what_templates_write(paths, name):
    """Not by names: a model that is called like another family's gets what its template writes."""
    for template in DIALECTS[name]:
        chat = ChatTemplate(paths[template].read_text(encoding="utf-8"), calls.TOKENS)
        for model in ("some/model", "meta-llama/Llama-3.2-1B-Instruct", "Qwen/Qwen3-Coder", "mistralai/Mistral-7B"):
            dialect = dialect_for(model, chat)
            assert (dialect.name, dialect.note, dialect.single) == (name, "", template in SINGLE), (template, model)


def test_a_guess_says_so(paths):
    dialect = dialect_for("HuggingFaceTB/SmolLM3-3B", calls.template_of(paths["HuggingFaceTB-SmolLM3-3B"]).chat)
    assert dialect.name == "hermes" and "no call could be read off its chat template" in dialect.note

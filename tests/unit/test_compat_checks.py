"""`sglang.test.test_programs`: the checks hold for answers of the right form, and fail for others."""

from __future__ import annotations

import importlib
import json
import unittest

import pytest

import sgl
from sgl.lang import compat
from sgl.lang.backends.apis.provider_sdk import TokenUsage
from sgl.lang.backends.scripted.scripted_backend import Scripted
from sgl.lang.compat.sglang_test import backend_check_programs as checks

NAMES = [
    "test_few_shot_qa",
    "test_mt_bench",
    "test_select",
    "test_decode_int",
    "test_decode_json_regex",
    "test_decode_json",
    "test_expert_answer",
    "test_tool_use",
    "test_react",
    "test_parallel_decoding",
    "test_parallel_encoding",
    "test_image_qa",
    "test_stream",
    "test_stream_logprobs",
    "test_regex",
    "test_dtype_gen",
    "test_completion_speculative",
    "test_chat_completion_speculative",
    "test_hellaswag_select",
    "test_gen_min_new_tokens",
]
FIT = {"left": "257", "right": "983", "days": "7", "weeks": "52", "address": "127.0.0.1"}


@pytest.fixture
def answers():
    """Sets the default backend to one that gives these answers, or "so it is" for other names."""

    def use(**by_name):
        known = {**FIT, **by_name}

        def script(prompt, request):
            choices = getattr(request, "choices", None)
            return choices[0] if choices else known.get(request.name, "so it is")

        backend = Scripted(script)
        sgl.set_default_backend(backend)
        return backend

    yield use
    sgl.set_default_backend(None)


def test_the_module_under_its_name():
    compat.install()
    try:
        module = importlib.import_module("sglang.test.test_programs")
        assert sorted(checks.__all__) == sorted(NAMES) == sorted(module.__all__)
        assert all(getattr(module, name) is getattr(checks, name) for name in NAMES)
    finally:
        compat.uninstall()


@pytest.mark.parametrize(
    "name",
    [
        "few_shot_qa",
        "mt_bench",
        "expert_answer",
        "decode_int",
        "tool_use",
        "parallel_encoding",
        "parallel_decoding",
        "stream",
        "regex",
        "chat_completion_speculative",
        "completion_speculative",
        "image_qa",
    ],
)
def test_answers_of_the_right_form(name, answers):
    answers()
    getattr(checks, f"test_{name}")()


def test_a_choice_is_asked_for_twice(answers):
    backend = answers()
    checks.test_select(check_answer=True)
    assert len(backend.calls) == 6


def test_too_few_tokens(answers):
    answers(answer="too short")
    with pytest.raises(AssertionError, match="64 to 96 tokens; found 2"):
        checks.test_gen_min_new_tokens()


def test_speculation_that_saves_nothing(answers):
    answers().token_usage = TokenUsage()
    with pytest.raises(AssertionError, match="fewer prompt tokens than 0"):
        checks.test_completion_speculative()


def test_a_loop_that_goes_on_is_cut(answers):
    answers(answer="the mill")
    checks.test_react()


def test_hellaswag(answers, monkeypatch, tmp_path):
    rows = [{"activity_label": "A", "ctx": "b", "endings": ["c", "d"], "label": n % 2} for n in range(8)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(checks, "download_and_cache_file", lambda url: str(path))
    answers()
    right, seconds = checks.test_hellaswag_select()
    assert right == 0.5
    assert seconds > 0


def test_data_that_is_not_reachable(monkeypatch):
    def refuse(url):
        raise ConnectionError("no way")

    monkeypatch.setattr(checks, "download_and_cache_file", refuse)
    with pytest.raises(unittest.SkipTest, match=r"not reachable at https://.*: no way"):
        checks.test_hellaswag_select()

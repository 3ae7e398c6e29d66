"""`sglang.test.test_utils`: the command line of benchmarks and the helpers of tests."""

from __future__ import annotations

import argparse
import json
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...global_config import global_config
from ..server_launch import free_port, kill_process_tree, popen_launch_server
from ..sglang_utils import is_in_ci, normalize_base_url

__all__ = [
    "DEFAULT_IMAGE_URL",
    "DEFAULT_MODEL_NAME_FOR_TEST",
    "DEFAULT_MOE_MODEL_NAME_FOR_TEST",
    "DEFAULT_REASONING_MODEL_NAME_FOR_TEST",
    "DEFAULT_SMALL_EMBEDDING_MODEL_NAME_FOR_TEST",
    "DEFAULT_SMALL_MODEL_NAME_FOR_TEST",
    "DEFAULT_SMALL_MODEL_NAME_FOR_TEST_BASE",
    "DEFAULT_SMALL_MODEL_NAME_FOR_TEST_QWEN",
    "DEFAULT_SMALL_VLM_MODEL_NAME_FOR_TEST",
    "DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH",
    "DEFAULT_URL_FOR_TEST",
    "DEFAULT_VIDEO_URL",
    "CustomTestCase",
    "add_common_sglang_args_and_parse",
    "dump_bench_raw_result",
    "find_available_port",
    "is_in_ci",
    "kill_process_tree",
    "popen_launch_server",
    "select_sglang_backend",
]

DEFAULT_MODEL_NAME_FOR_TEST = "meta-llama/Llama-3.1-8B-Instruct"
DEFAULT_SMALL_MODEL_NAME_FOR_TEST = "meta-llama/Llama-3.2-1B-Instruct"
DEFAULT_SMALL_MODEL_NAME_FOR_TEST_BASE = "meta-llama/Llama-3.2-1B"
DEFAULT_SMALL_MODEL_NAME_FOR_TEST_QWEN = "Qwen/Qwen2.5-1.5B-Instruct"
DEFAULT_MOE_MODEL_NAME_FOR_TEST = "mistralai/Mixtral-8x7B-Instruct-v0.1"
DEFAULT_REASONING_MODEL_NAME_FOR_TEST = "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"
DEFAULT_SMALL_EMBEDDING_MODEL_NAME_FOR_TEST = "Alibaba-NLP/gte-Qwen2-1.5B-instruct"
DEFAULT_SMALL_VLM_MODEL_NAME_FOR_TEST = "Qwen/Qwen2.5-VL-3B-Instruct"
DEFAULT_IMAGE_URL = "https://raw.githubusercontent.com/sgl-project/sglang/main/examples/assets/example_image.png"
DEFAULT_VIDEO_URL = "https://raw.githubusercontent.com/EvolvingLMMs-Lab/sglang/dev/onevision_local/assets/jobs.mp4"
DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH = 600  # seconds
DEFAULT_URL_FOR_TEST = "http://127.0.0.1:21000"
WITHOUT_PARALLEL_ENCODING = "srt-no-parallel"


class CustomTestCase(unittest.TestCase):
    """A test case; where it was retried before, it is run once here."""


def add_common_sglang_args_and_parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options that all benchmark programs have, and the parsed command line."""
    parser.add_argument("--parallel", type=int, default=64)
    parser.add_argument("--host", type=str, default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--backend", type=str, default="srt")
    parser.add_argument("--device", type=str, default="auto", choices=["auto", "cuda", "rocm", "cpu"])
    parser.add_argument("--result-file", type=str, default="result.jsonl")
    parser.add_argument("--raw-result-file", type=str)
    return parser.parse_args()


def select_sglang_backend(args: argparse.Namespace) -> Any:
    """The backend that the options name: srt, srt-no-parallel or a gpt- model. ValueError for others."""
    if args.backend.startswith("srt"):
        from ..sglang_alias_endpoint import RuntimeEndpoint

        if args.backend == WITHOUT_PARALLEL_ENCODING:
            global_config.enable_parallel_encoding = False
        return RuntimeEndpoint(normalize_base_url(args.host, args.port))
    if args.backend.startswith("gpt-"):
        from ...backends.openai.openai_backend import OpenAI

        return OpenAI(args.backend)
    raise ValueError(f"--backend {args.backend!r} is not known; give srt, srt-no-parallel or the name of a gpt- model")


def find_available_port(base_port: int) -> int:
    return free_port()


def dump_bench_raw_result(path: str | None, states: Sequence[Any], preds: Sequence[Any], labels: Sequence[Any]) -> None:
    """One line of JSON for each item: its prompt, the variable `answer`, and whether it was right."""
    if not path:
        return
    rows = []
    for index, (state, predicted, label) in enumerate(zip(states, preds, labels, strict=True)):
        output = state["answer"]
        prompt = state.text().removesuffix(output)
        correct = bool(predicted == label)
        rows.append({"prompt_id": index, "prompt": prompt, "output": output, "correct": correct})
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))

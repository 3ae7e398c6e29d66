"""The helpers that programs import beside the language."""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from sgl.lang import compat
from sgl.lang.chat.reasoning_split import split_reasoning
from sgl.lang.compat import server_launch, server_process_stand_ins, sglang_alias_settings, sglang_utils
from sgl.lang.compat.server_args import ServerArgs
from sgl.lang.compat.sglang_srt.reasoning_parser import ReasoningParser
from sgl.lang.compat.sglang_srt.srt_utils import build_regex_from_object, kill_process_tree, load_image
from sgl.lang.compat.sglang_test import sglang_test_utils
from sgl.lang.compat.shared_engines import SharedEngines
from sgl.lang.errors import BadValueError


@pytest.fixture
def local():
    """Endpoints and servers are the embedded engine, as under `sgl run`."""
    sglang_alias_settings.configure(local=True, url=None, model=None)
    yield sglang_alias_settings.settings
    sglang_alias_settings.configure(local=False, url=None, model=None)


# --- sglang.utils -----------------------------------------------------------------------------------------


def test_read_jsonl_gives_a_list(tmp_path):
    (tmp_path / "x.jsonl").write_text('# a comment\n{"a": 1}\n\n[2, "\u2028"]\n', encoding="utf-8")
    assert sglang_utils.read_jsonl(str(tmp_path / "x.jsonl")) == [{"a": 1}, [2, "\u2028"]]


def test_dump_state_text_takes_anything(tmp_path):
    path = tmp_path / "out.txt"
    sglang_utils.dump_state_text(str(path), ["first", ["a", "list"]])
    sglang_utils.dump_state_text(str(path), ["third"], mode="a")
    text = path.read_text()
    assert text.index("first") < text.index("['a', 'list']") < text.index("third")


def test_urls_and_schemas(capsys):
    assert sglang_utils.normalize_base_url("127.0.0.1", 30000) == "http://127.0.0.1:30000"
    assert sglang_utils.normalize_base_url("https://host", 1) == "https://host:1"
    assert json.loads(sglang_utils.convert_json_schema_to_str({"type": "string"})) == {"type": "string"}
    assert sglang_utils.trim_overlap("Hello wor", "world") == "ld"
    sglang_utils.print_highlight(3)
    assert capsys.readouterr().out == "3\n"


def test_a_file_is_fetched_once(tmp_path):
    path = tmp_path / "there.txt"
    path.write_text("kept")
    assert sglang_utils.download_and_cache_file("http://127.0.0.1:9/there.txt", str(path)) == str(path)
    assert path.read_text() == "kept"


# --- sglang.test.test_utils ----------------------------------------------------------------------------------


def test_the_command_line_of_benchmarks(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench.py", "--mine", "3"])
    parser = argparse.ArgumentParser()
    parser.add_argument("--mine", type=int)
    args = vars(sglang_test_utils.add_common_sglang_args_and_parse(parser))
    assert args == {
        "mine": 3,
        "parallel": 64,
        "host": "127.0.0.1",
        "port": 30000,
        "backend": "srt",
        "device": "auto",
        "result_file": "result.jsonl",
        "raw_result_file": None,
    }


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="'vllm' is not known"):
        sglang_test_utils.select_sglang_backend(argparse.Namespace(backend="vllm", host="x", port=1))


# --- servers ---------------------------------------------------------------------------------------------------


def test_a_server_that_is_not_launched(local, capsys):
    process, port = server_launch.launch_server_cmd(
        "python -m sglang.launch_server --model-path a/b --context-length 99"
    )
    url = f"http://localhost:{port}"
    args = server_process_stand_ins.launched_at(url)
    assert args is not None
    assert (args.model_path, args.engine_options(replaced=False)) == ("a/b", {"context": 99})
    assert process.poll() is None
    server_launch.wait_for_server(url)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    server_launch.terminate_process(process)
    assert (process.poll(), server_process_stand_ins.launched_at(url)) == (0, None)
    assert "no server is launched for 'a/b'" in capsys.readouterr().err


def test_the_alias_may_be_local_without_sgl_run():
    compat.install(local=True)
    compat.install()
    assert sglang_alias_settings.settings.local
    compat.uninstall()
    assert not sglang_alias_settings.settings.local


def test_other_commands_are_run(local):
    process = server_launch.execute_shell_command(f"{sys.executable} -c 'import sys; sys.exit(5)'")
    assert process.wait() == 5


def test_waiting_ends_when_the_process_ends_or_the_time():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(RuntimeError, match="ended with status 0"):
        server_launch.wait_for_server("http://127.0.0.1:9", process=process)
    with pytest.raises(TimeoutError, match="after 1 seconds"):
        server_launch.wait_for_server("http://127.0.0.1:9", timeout=1)


def test_a_process_and_its_children_are_killed():
    nested = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; "
        "time.sleep(60)']).pid, flush=True); import time; time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", nested], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    kill_process_tree(process.pid)
    assert process.wait(timeout=10) == -9
    process.stdout.close()
    until = time.monotonic() + 10  # it was told to end, and ends as the system gets to it
    while (
        state := subprocess.run(["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True).stdout.strip()
    ) and not state.startswith("Z"):
        assert time.monotonic() < until, state
        time.sleep(0.05)


# --- options of a server -----------------------------------------------------------------------------------------


def test_options_with_and_without_a_meaning():
    with pytest.warns(UserWarning, match=r"no effect on the embedded engine: tp_size=2, fancy='x'$") as warned:
        args = ServerArgs(
            model_path="m",
            tp_size=2,
            dp_size=1,
            fancy="x",
            dtype="half",
            max_running_requests=4,
            log_level="error",
        )
    assert warned[0].filename == __file__
    assert args.engine_options(replaced=False) == {"dtype": "float16", "max_running": 4}
    assert args.engine_options(replaced=True) == {"max_running": 4}
    assert args.tp_size == 2


SPREADS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"tp_size": 2}, {"tensor_parallel": 2}, ""),
    ({"tp_size": 2, "pp_size": 1, "dp_size": 2}, {"tensor_parallel": 2, "replicas": 2}, ""),
    ({"pp_size": 2, "tp_size": 2}, {"pipeline_parallel": 2, "tensor_parallel": 2}, ""),
    ({"tp_size": 4, "ep_size": 4}, {"tensor_parallel": 4, "expert_parallel": True}, ""),
    ({"ep_size": 4}, {}, "ep_size=4"),
    ({"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}, {"tensor_parallel": 2}, "dp_size=2"),
    ({"tp_size": 4, "pp_size": 2}, {}, "tp_size=4, pp_size=2"),
    ({"tp_size": 2, "device": "cpu"}, {"device": "cpu"}, "tp_size=2"),
    ({"tp_size": "two"}, {}, "tp_size='two'"),
]


@pytest.mark.parametrize("given, meant, idle", SPREADS)
def test_sizes_mean_cards_where_there_are_as_many(given, meant, idle, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: SimpleNamespace(name="card", total_memory=0))
    monkeypatch.setattr("sgl.lang.compat.server_args.settings.is_new", lambda message: True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        args = ServerArgs(model_path="m", **given)
    assert [str(warning.message) for warning in told] == ([f"no effect on the embedded engine: {idle}"] if idle else [])
    assert args.engine_options(replaced=False) == meant
    assert args.engine_options(replaced=True) == {name: value for name, value in meant.items() if name == "device"}


def test_the_model_of_a_program(local, capsys, monkeypatch, tmp_path):
    assert sglang_alias_settings.choose_model("org/name") == sglang_alias_settings.ModelChoice(None, True)
    assert sglang_alias_settings.choose_model(str(tmp_path)) == sglang_alias_settings.ModelChoice(str(tmp_path), False)
    sglang_alias_settings.choose_model("org/name")
    assert capsys.readouterr().err.count("the bundled model stands in for 'org/name'") == 1
    monkeypatch.setenv("SGL_MODEL", "/models/x")
    assert sglang_alias_settings.choose_model("org/name") == sglang_alias_settings.ModelChoice("/models/x", True)
    local.model = "/models/y"
    assert sglang_alias_settings.choose_model("org/name") == sglang_alias_settings.ModelChoice("/models/y", True)
    sglang_alias_settings.configure(local=False, url=None, model=None)
    monkeypatch.delenv("SGL_MODEL")
    assert sglang_alias_settings.choose_model("org/name") == sglang_alias_settings.ModelChoice("org/name", False)


# --- sglang.srt ----------------------------------------------------------------------------------------------------


class City(BaseModel):
    name: str
    size: int


def test_a_regex_of_a_schema():
    for given in (City, City.model_json_schema(), json.dumps(City.model_json_schema())):
        assert re.fullmatch(build_regex_from_object(given), '{"name": "Oslo", "size": 7}')
    with pytest.raises(ValueError):
        build_regex_from_object("no JSON")


def test_pictures(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    path = tmp_path / "x.png"
    pillow.new("RGB", (3, 2)).save(path)
    data = path.read_bytes()
    import base64

    text = base64.b64encode(data).decode()
    for source in (
        str(path),
        f"file://{path}",
        data,
        text,
        f"data:image/png;base64,{text}",
        pillow.open(path),
    ):
        image, size = load_image(source)
        assert image.size == size == (3, 2)


# --- reasoning -------------------------------------------------------------------------------------------------------

TEXTS = ("<think>a < b, so</think>yes", "no marks", "<think>never ends", "so</think>then <thin")


@pytest.mark.parametrize("model_type", ["deepseek-r1", "qwen3"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_streamed_thoughts_are_those_of_the_whole_text(model_type, text, size):
    parser = ReasoningParser(model_type)
    pairs = [parser.parse_stream_chunk(text[start : start + size]) for start in range(0, len(text), size)]
    pairs.append(parser.flush())
    streamed = tuple("".join(parts).strip() for parts in zip(*pairs, strict=True))
    assert streamed == parser.parse_non_stream(text) == split_reasoning(text, model_type)


def test_a_thought_may_be_kept_back_until_it_is_whole():
    parser = ReasoningParser("qwen3", stream_reasoning=False)
    assert [parser.parse_stream_chunk(chunk) for chunk in ("<think>a", "b", "</think>", "c")] == [
        ("", ""),
        ("", ""),
        ("ab", ""),
        ("", "c"),
    ]


def test_reasoning_may_be_forced_and_unknown_models_are_refused():
    assert ReasoningParser("qwen3", force_reasoning=True).parse_non_stream("a</think>b") == ("a", "b")
    with pytest.raises(BadValueError, match="nonsense"):
        ReasoningParser("nonsense")
    with pytest.raises(ValueError):
        ReasoningParser()


# --- engines -------------------------------------------------------------------------------------------------------


class OpenEngine:
    """What the holders of engines need of one."""

    def __init__(self, model, **options):
        self.model, self.options, self.closed = model, options, False

    def close(self):
        self.closed = True


def test_engines_are_shared_and_closed_by_their_last_holder(monkeypatch):
    monkeypatch.setattr("sgl.lang.compat.shared_engines._open", lambda model, options: OpenEngine(model, **options))
    shared = SharedEngines()
    first, second = shared.take("m", {"dtype": "x"}), shared.take("m", {"dtype": "x"})
    other = shared.take("m", {})
    assert first.engine is second.engine is not other.engine
    engine = first.engine
    first.release()
    first.release()
    assert not engine.closed
    del second
    gc.collect()
    assert engine.closed
    assert not other.engine.closed
    assert shared.take("m", {"dtype": "x"}).engine is not engine

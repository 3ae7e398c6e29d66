"""`sgl run`: programs in the style of public ones, unchanged, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sgl
from sgl.lang.compat.generate_on_engine import sampling_options
from sgl.lang.compat.sglang_alias_engine import Engine
from sgl.lang.errors import ArgumentsError, BadValueError, UnknownOptionError, UnsupportedByBackendError

PROGRAMS = Path(__file__).parent / "programs"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sgl.cli", "run", *map(str, arguments)]


def run(*arguments: str, cwd: Path = PROGRAMS, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environment}
    return subprocess.run(command(*arguments), cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)


# --- how a program is started ------------------------------------------------------------------------------


def test_a_script_sees_what_python_would_give_it():
    done = run("pack/__main__.py", "show", "--backend", "srt", "-m")
    seen = json.loads(done.stdout)
    script = PROGRAMS / "pack" / "__main__.py"
    assert seen["argv"] == ["pack/__main__.py", "show", "--backend", "srt", "-m"]
    assert (seen["name"], seen["file"], seen["path"]) == ("__main__", str(script), str(script.parent))
    assert (seen["gen"], seen["type"]) == ("Gen('x')", "<class 'int'>")
    assert done.stderr == ""


def test_a_module():
    seen = json.loads(run("-m", "pack", "show").stdout)
    assert seen["argv"][1:] == ["show"]
    assert (seen["name"], seen["path"]) == ("__main__", str(PROGRAMS))


def test_the_exit_status_is_the_program_s():
    assert run("-m", "pack", "exit").returncode == 3


def test_an_error_shows_the_program_s_lines_only():
    done = run("pack/__main__.py", "fail")
    assert done.returncode == 1
    assert done.stderr.count("File ") == 1
    assert "ValueError: the program's own error" in done.stderr


def test_a_program_that_is_not_there():
    done = run("nothing.py")
    assert done.returncode == 2
    assert "no file 'nothing.py'" in done.stderr


def test_a_backend_that_does_not_answer():
    done = run("--backend", "http://127.0.0.1:9", "pack/__main__.py")
    assert done.returncode == 2
    assert "http://127.0.0.1:9" in done.stderr


def test_a_program_from_standard_input_whose_output_nobody_reads():
    """`echo ... | sgl run - | true`"""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody:
        done = subprocess.run(
            command("-"),
            input="import sglang as sgl\nfor n in range(9999): print(sgl.gen)",
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_a_real_sglang_is_hidden_only_when_told_to(tmp_path):
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("")
    done = run("pack/__main__.py", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert f"sglang itself is installed ({tmp_path}" in done.stderr
    assert json.loads(run("--force", "pack/__main__.py", PYTHONPATH=str(tmp_path)).stdout)["gen"] == "Gen('x')"


def test_control_c(tmp_path):
    ready = tmp_path / "ready"
    process = subprocess.Popen(
        command("-m", "pack", "sleep"),
        cwd=PROGRAMS,
        env={**os.environ, "READY": str(ready)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs ignore it
    )
    deadline = time.monotonic() + 30
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said == "sgl run: interrupted\n"


def test_control_c_while_threads_of_the_program_go_on():
    program = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\nraise KeyboardInterrupt"
    began = time.monotonic()
    done = subprocess.run(command("-"), input=program, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (130, "sgl run: interrupted\n")
    assert time.monotonic() - began < 20


# --- on the embedded engine ------------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_quick_start():
    done = run("guide.py", "a", "b")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["arguments"] == ["guide.py", "a", "b"]
    assert told["text"] == told["streamed"] == told["batch"][0] != told["batch"][1]
    assert told["roles"] == ["user", "assistant", "user", "assistant"]
    assert len(told["advice"]) == 2
    assert told["verdict"] in ("go", "stay at home")
    assert "nothing answers at http://localhost:30000: the embedded engine does" in done.stderr


@pytest.mark.whole
def test_a_benchmark(tmp_path):
    lines = [{"question": f"What is {a} + 1?", "answer": str(a + 1)} for a in range(3)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    script = str(PROGRAMS / "bench_sums.py")
    done = run(script, "--backend", "srt-no-parallel", "--raw-result-file", "raw.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.jsonl").read_text())
    assert (result["task"], result["requests"]) == ("sums", 3)
    raw = [json.loads(line) for line in (tmp_path / "raw.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in raw] == [f"Question: What is {a} + 1?\nAnswer:" for a in range(3)]
    assert result["tokens"] >= sum(bool(row["output"]) for row in raw)
    assert "What is 2 + 1?" in (tmp_path / "tmp_output_srt-no-parallel.txt").read_text()


@pytest.mark.whole
def test_programs_with_servers_of_their_own():
    done = run("servers.py")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == 4
    assert len(set(answers)) == 1
    assert "no server is launched for 'meta-llama/Llama-3.2-1B-Instruct'" in done.stderr
    assert "the bundled model stands in for 'meta-llama/Llama-2-7b-chat-hf'" in done.stderr
    assert "no effect on the embedded engine: tp=2" in done.stderr


@pytest.mark.whole
def test_a_test_file_for_backends(tmp_path):
    row = {"activity_label": "Baking", "ctx": "She", "endings": ["kneads", "sings", "runs", "reads"], "label": 0}
    (tmp_path / "hellaswag_val.jsonl").write_text(8 * (json.dumps(row) + "\n"))
    done = run("check_backend.py", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Ran 20 tests" in done.stderr
    assert "OK (skipped=1)" in done.stderr
    assert "skipped 'this model takes no pictures" in done.stderr


@pytest.mark.whole
def test_a_model_of_one_s_own_and_a_picture(tiny):
    done = run("--model", str(tiny), "pictures.py")
    assert done.returncode == 1
    assert "does not accept images" in done.stderr


# --- the engine that takes a server's options ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine():
    with Engine(max_running_requests=8) as engine:
        yield engine


GREEDY = {"max_new_tokens": 6, "temperature": 0}


def test_generate_gives_what_the_runtime_gives(engine):
    answer = engine.generate("The capital of France is", GREEDY)
    oracle = engine.endpoint.engine.generate("The capital of France is", max_tokens=6, temperature=0)
    assert answer["text"] == oracle.text
    meta = answer["meta_info"]
    assert meta["finish_reason"] == oracle.finish_reason
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (oracle.prompt_tokens, oracle.completion_tokens)


def test_token_ids_in_place_of_text(engine):
    ids = engine.endpoint.tokenizer.encode("The capital of France is", special_prefix=True).tolist()
    by_text = engine.generate("The capital of France is", GREEDY, return_logprob=True, logprob_start_len=0)
    by_ids = engine.generate(input_ids=ids, sampling_params=GREEDY, return_logprob=True, logprob_start_len=0)
    assert by_ids["text"] == by_text["text"]
    rows = by_ids["meta_info"]["input_token_logprobs"]
    assert [row[1] for row in rows] == ids
    assert rows[0][0] is None
    assert [row[1] for row in by_text["meta_info"]["input_token_logprobs"]] == ids


def test_batches_samples_and_options_for_each(engine):
    answers = engine.generate(["one", "two"], [GREEDY, {**GREEDY, "max_new_tokens": 2}])
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == [6, 2]
    assert answers[0]["text"] == engine.generate("one", GREEDY)["text"]
    assert len(engine.generate("one", {**GREEDY, "n": 3})) == 3
    assert isinstance(engine.generate(["one"], GREEDY), list)


def test_streams_hold_the_text_so_far(engine):
    whole = engine.generate(["one", "two"], GREEDY)
    last: dict[int, str] = {}
    for answer in engine.generate(["one", "two"], GREEDY, stream=True):
        assert answer["text"].startswith(last.get(answer["index"], ""))
        last[answer["index"]] = answer["text"]
    assert [last[0], last[1]] == [answer["text"] for answer in whole]


async def _async_answers(engine):
    plain = await engine.async_generate("one", GREEDY)
    stream = await engine.async_generate("one", GREEDY, stream=True)
    return plain, [answer async for answer in stream]


def test_async(engine):
    import asyncio

    plain, streamed = asyncio.run(_async_answers(engine))
    assert streamed[-1]["text"] == plain["text"] == engine.generate("one", GREEDY)["text"]


def test_scores_are_probabilities_of_the_next_token(engine):
    labels = [10, 20, 30]
    (among,) = engine.score("Is it good? ", ["yes"], labels, apply_softmax=True)
    (of_all,) = engine.score("Is it good? ", ["yes"], labels)
    assert sum(among) == pytest.approx(1)
    assert sum(of_all) < 1
    assert of_all[0] / of_all[1] == pytest.approx(among[0] / among[1])


def test_vectors_of_texts(engine):
    one, two = engine.encode("Is it good?"), engine.encode(["Is it good?", "x"])
    assert one["embedding"] == pytest.approx(two[0]["embedding"], abs=1e-3) and len(two) == 2
    assert one["embedding"] == pytest.approx(engine.endpoint.engine.embed("Is it good?")[0].tolist(), abs=1e-3)
    assert one["meta_info"]["prompt_tokens"] == len(
        engine.endpoint.tokenizer.encode("Is it good?", special_prefix=True)
    )


def test_what_the_engine_refuses(engine):
    with pytest.raises(UnknownOptionError, match="did you mean 'max_new_tokens'"):
        engine.generate("x", {"max_new_token": 3})
    with pytest.raises(UnsupportedByBackendError, match="image_data"):
        engine.generate("x", GREEDY, image_data="picture.png")
    with pytest.raises(ArgumentsError, match="a prompt or input_ids"):
        engine.generate()
    with pytest.raises(BadValueError, match="1 items for 2 prompts"):
        engine.generate(["x", "y"], [GREEDY])
    with pytest.raises(UnsupportedByBackendError, match="reranking"):
        engine.rerank("x", ["y"])


def test_native_names_of_sampling_options():
    options = sampling_options({"sampling_seed": 7, "no_stop_trim": True, "skip_special_tokens": False, "stop": "x"})
    assert (options.seed, options.keep_stop, options.stop, options.max_new_tokens) == (7, True, ("x",), 128)


def test_an_engine_is_a_backend(engine):
    @sgl.function
    def program(s):
        s += "The capital of France is" + sgl.gen("city", max_tokens=6, temperature=0)

    assert program.run(backend=engine)["city"] == engine.generate("The capital of France is", GREEDY)["text"]

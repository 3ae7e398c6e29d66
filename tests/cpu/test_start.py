"""What a start does is counted: modules, files, bytes, threads, processes. The clock is in no test.

A limit is a little above what a start needs today. Where one is passed, the message names what is new: load it late,
or, if every start needs it, raise the limit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_checkpoint
from test_gguf_engine import file_of

from sgl.runtime.loading.model_files.locate_model import BUNDLED

PROBE = Path(__file__).with_name("start_probe.py")
PACKAGES = {"jinja2", "markupsafe", "numpy", "safetensors", "sgl", "tokenizers"}  # besides those of torch
STANDARD = 12  # modules of Python's own library
MODULES = 500  # of ours
ROOMS = {  # how many modules of each; those of the floors themselves and of common are not listed
    "grammars": "algebra 3, automaton 2, compile_client 2, schema 3, tokens 6",
    "lang": "backends 10, chat 6, concurrency 5, graph 8, interpreter 13, media 3, nodes 9, places 2, program 15, "
    "sampling 9, typed 10",
    "runtime": "adapters 17, attention 14, build 17, cache 21, calibration 6, common 6, executor 8, kernels 6, "
    "layers 20, loading 44, loop 11, memory 6, models 73, nano 2, parallel 3, quantization 35, sampling 13, "
    "scheduling 7, sequences 24, speculative 2, step 7, text 28, watch 5",
}
THREADS = {"sgl-start", "sgl-load", "sgl-scheduler", "sgl-torch-threads"}
CODE = 4_000_000  # bytes of modules that are imported while the engine is built
DESCRIBING = 160  # modules of ours that `sgl models` may load
FRONT = 12  # modules of ours that `import sgl, sgl.runtime` may load


def started(*model: str) -> dict[str, Any]:
    environment = os.environ | {"SGL_CACHE": "0"}
    done = subprocess.run([sys.executable, str(PROBE), *model], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def nano() -> dict[str, Any]:
    return started()


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = file_of(write_checkpoint(tmp_path_factory.mktemp("start") / "model", tokenizer=True))
    return started(str(file)) | {"file": str(file)}


def rooms_of(floor: str, modules: list[str]) -> dict[str, list[str]]:
    """The modules of each package of a floor."""
    inner = [name.removeprefix(f"sgl.{floor}.") for name in modules if name.startswith(f"sgl.{floor}.")]
    rooms: dict[str, list[str]] = defaultdict(list)
    for name in inner:
        rooms[name.partition(".")[0]].append(name)
    return {room: names for room, names in rooms.items() if len(names) > 1 or "." in names[0]}


@pytest.mark.parametrize("model", ["nano", "gguf"])
def test_a_start_imports_what_it_needs(model: str, request: pytest.FixtureRequest) -> None:
    modules = request.getfixturevalue(model)["modules"]
    others = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - PACKAGES
    assert not others, f"other packages are imported: {', '.join(sorted(others))}"
    assert not [name for name in modules if name.startswith("torch.")], "parts of torch that `import torch` leaves out"
    standard = [name for name in modules if name.partition(".")[0] in sys.stdlib_module_names]
    assert len(standard) <= STANDARD, standard
    ours = [name for name in modules if name.startswith("sgl.")]
    for floor, text in ROOMS.items():
        limits = dict(entry.split() for entry in text.split(", "))
        for room, names in rooms_of(floor, ours).items():
            most = int(limits.get(room, 0))
            assert len(names) <= most, f"{floor}/{room}: {len(names)} modules, at most {most}: {', '.join(names)}"
    assert len(ours) <= MODULES


@pytest.mark.parametrize("model", ["nano", "gguf"])
def test_a_start_has_few_threads_and_no_processes(model: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(model)
    assert not found["processes"]
    assert {name.rstrip("_0123456789") for name in found["threads"]} <= THREADS
    readers = [name for name in found["threads"] if name == "sgl-load"]  # as many as there are cores, 8 at most
    assert len(readers) <= 8 and len(found["threads"]) - len(readers) <= 3, found["threads"]


def test_files_of_the_bundled_model_are_read_once(nano: dict[str, Any]) -> None:
    sizes = {file.name: file.stat().st_size for file in BUNDLED.iterdir()}
    opened = {Path(name).name: times for name, times in nano["opened"].items() if f"/{BUNDLED.name}/" in name}
    weights = {name: opened.pop(name) for name in list(opened) if name.endswith(".safetensors")}
    assert len(weights) == 3 and max(weights.values()) <= 40, weights
    assert opened.pop("config.json") <= 6
    assert set(opened.values()) == {1}, opened
    assert nano["read"] <= sum(sizes[name] for name in (*weights, *opened)) + CODE


def test_a_gguf_file_is_read_once(gguf: dict[str, Any]) -> None:
    files = {name: times for name, times in gguf["opened"].items() if not name.startswith(("/proc/", "/sys/"))}
    assert list(files) == [gguf["file"]], files
    assert gguf["read"] <= 2 * Path(gguf["file"]).stat().st_size + CODE


PROGRAM = """
import sys
import sgl, sgl.runtime
for name in ("torch", "numpy", "tokenizers", "jinja2", "pydantic", "asyncio"):
    assert name not in sys.modules, name
print(*sorted(name for name in sys.modules if name.startswith("sgl")))
"""


def test_the_front_door_imports_next_to_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) <= FRONT, done.stdout


DESCRIBES = """
import sys
from sgl.cli import main
assert main(["models", *sys.argv[1:]]) == 0
for name in ("torch", "transformers", "safetensors", "asyncio", "multiprocessing", "socket", "urllib.request"):
    assert name not in sys.modules, name
print(sum(name.startswith("sgl.") for name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("model", ["", "bundled", "gguf"])
def test_a_description_of_models_needs_no_torch(model: str, request: pytest.FixtureRequest) -> None:
    words = {"": [], "bundled": [str(BUNDLED)], "gguf": []}[model]
    if model == "gguf":
        words = [request.getfixturevalue("gguf")["file"]]
    options = ["device=cpu", "dtype=float32"]  # which torch may be asked for elsewhere
    done = subprocess.run([sys.executable, "-c", DESCRIBES, *words, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stderr.split()[-1]) <= DESCRIBING


def test_help_imports_the_commands_alone() -> None:
    program = "import sys\nfrom sgl.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
    program += "assert not {'torch', 'numpy', 'tokenizers'} & set(sys.modules)\n"
    program += "assert sum(name.startswith('sgl.') for name in sys.modules) <= 40"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""mypy and pyright know the types of the public API: programs of tests/typing and docs/typing.md, short examples."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mypy.modulefinder import get_search_dirs

import sgl
from sgl.lang.program.batch_options import BatchDisplayOptions, BatchOptions
from sgl.lang.program.batch_runs import OPTION_NAMES
from sgl.lang.program.program_run import _SWITCHES
from sgl.lang.program.run_options import RunOptions
from sgl.lang.sampling.options import RUN_NAMES

ROOT = Path(__file__).parents[2]
EXAMPLES = ("invoices", "mails", "small_agent")
PROGRAMS = {path.name: path.read_text() for path in sorted((ROOT / "tests/typing").glob("*.py"))}
PROGRAMS |= {f"{name}_example.py": (ROOT / f"examples/{name}.py").read_text() for name in EXAMPLES}
PROGRAMS["page.py"] = "# mypy: allow-untyped-defs\n" + "".join(
    re.findall(r"```py(?:thon)?\n(.*?)```", (ROOT / "docs/typing.md").read_text(), re.S)
)
FLOORS = ("lang", "runtime", "grammars", "common")
MYPY = """
[mypy]
python_version = 3.11
strict = true
[mypy-torch.*,transformers.*,numpy.*,triton.*,pydantic_core.*,httpx.*,openai.*,anthropic.*,litellm.*,fastapi.*,sgl.grammars.*,sgl.runtime.models.*,sgl.runtime.executor.*,sgl.runtime.attention.*,sgl.runtime.layers.*]
follow_imports = skip
"""
PYRIGHT = """{
  "extraPaths": ["../build/types"], "typeCheckingMode": "strict", "reportMissingModuleSource": false,
  "reportPossiblyUnboundVariable": "error", "reportUnusedExpression": false, "reportUnusedVariable": false
}"""


@pytest.fixture
def folder(tmp_path):
    """A folder with the package as links, which `make` puts on the path for tools that run nothing, and programs."""
    for name in ("sgl", *FLOORS):
        (tmp_path / name).symlink_to(ROOT / name)
    subprocess.run(["make", "-s", "-f", ROOT / "Makefile", "-C", tmp_path, "types"], check=True)
    (tmp_path / "programs").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "programs" / name).write_text(text)
    return tmp_path


def unexpected(output: str) -> list[str]:
    """Errors of lines without the mark, and lines with the mark that have no error."""
    found = {}
    for name, line, message in re.findall(r"^.*?(\w+\.py):(\d+)(?::\d+)?(?: -|:) error: (.*)$", output, re.MULTILINE):
        found.setdefault((name, int(line)), message)
    marked = {
        (name, number)
        for name, text in PROGRAMS.items()
        for number, line in enumerate(text.splitlines(), 1)
        if line.endswith("# error")
    }
    assert len(marked) >= 60
    return [
        *(f"{name}:{line}: {message}" for (name, line), message in found.items() if (name, line) not in marked),
        *(f"{name}:{line} has no error" for name, line in sorted(marked - found.keys())),
    ]


@pytest.mark.whole
def test_mypy_finds_the_wrong_lines_and_no_other(folder):
    (folder / "programs/mypy.ini").write_text(MYPY)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--follow-imports=silent"]
    done = subprocess.run(
        [*command, *PROGRAMS],
        cwd=folder / "programs",
        env={"MYPYPATH": str(folder / "build/types"), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1 and not unexpected(done.stdout), done.stderr


def test_pyright_finds_the_wrong_lines_and_no_other(folder):
    pytest.importorskip("pyright")
    (folder / "programs/pyrightconfig.json").write_text(PYRIGHT)
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    offline = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, cwd=folder / "programs", env=offline, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1 and not unexpected(done.stdout), done.stderr


class LanguageServer:
    """pyright as an editor runs it: requests and answers as JSON, with a header each."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "pyright.langserver", "--stdio"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process, self.number = subprocess.Popen(command, cwd=folder, **pipes), 0
        client = {"processId": None, "rootUri": folder.as_uri(), "capabilities": {}}
        where = [{"uri": folder.as_uri(), "name": "programs"}]
        self.ask("initialize", {**client, "workspaceFolders": where})
        self.send({"method": "initialized", "params": {}})

    def send(self, message: dict) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        self.process.stdin.flush()

    def ask(self, method: str, params: dict):
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        while True:
            header = b"".join(iter(self.process.stdout.readline, b"\r\n"))
            answer = json.loads(self.process.stdout.read(int(re.search(rb"Content-Length: (\d+)", header)[1])))
            if answer.get("id") == self.number and "method" not in answer:
                return answer["result"]
            if "id" in answer:  # it asks for settings, and to register what it can do
                self.send({"id": answer["id"], "result": None})


@pytest.mark.whole
def test_editors_show_the_docstrings_and_complete_the_options(folder):
    pytest.importorskip("pyright")
    (folder / "programs/pyrightconfig.json").write_text(PYRIGHT)
    lines = ["import sgl", "@sgl.function", "def reply(s: sgl.State, question: str) -> int:"]
    lines += ["    '''Answers a question.'''", '    s += sgl.gen("x", int, )', "    return 1", 'reply.run("x", )']
    file = folder / "programs/edited.py"
    file.write_text("\n".join(lines))
    server = LanguageServer(folder / "programs")
    document = {"uri": file.as_uri()}
    opened = document | {"languageId": "python", "version": 1, "text": "\n".join(lines)}
    server.send({"method": "textDocument/didOpen", "params": {"textDocument": opened}})

    def at(method: str, line: int, column: int):
        position = {"line": line, "character": column}
        return server.ask(f"textDocument/{method}", {"textDocument": document, "position": position})

    try:
        shown = at("hover", 4, 14)["contents"]["value"]
        assert "type: type[Value@gen] = str" in shown and "Let the model write." in shown
        assert "Answers a question." in at("hover", 6, 2)["contents"]["value"]
        assert "run(question: str) -> ProgramState[int]" in at("hover", 6, 7)["contents"]["value"]
        found = {item["label"] for item in at("completion", 4, len(lines[4]) - 1)["items"]}
        assert {"temperature=", "stop=", "regex=", "choices="} <= found
        found = {item["label"] for item in at("completion", 6, len(lines[6]) - 1)["items"]}
        assert {"question=", "temperature=", "backend="} <= found
    finally:
        server.process.kill()
        server.process.communicate()


def test_type_checkers_know_the_options_that_batches_take():
    assert set(BatchOptions.__annotations__) == OPTION_NAMES | {"num_threads"}
    more = {*BatchDisplayOptions.__annotations__} - {*BatchOptions.__annotations__} | {
        "num_threads",
        "return_exceptions",
        "generator_style",
    }
    assert more <= set(inspect.signature(sgl.SglFunction.run_batch).parameters)
    assert set(RunOptions.__annotations__) == RUN_NAMES | _SWITCHES


def test_a_fresh_environment_of_the_makefile_shows_the_package(folder, tmp_path):
    """What `make` writes beside the editable install, whose import hook type checkers cannot run."""
    for name in ("pyproject.toml", "setup.py", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    planned = subprocess.run(
        ["make", "-nB", "-f", ROOT / "Makefile", ".venv/.usable"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (write,) = [line for line in planned.stdout.splitlines() if "sgl_folders.pth" in line]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    subprocess.run(write, shell=True, cwd=tmp_path, check=True)
    python = tmp_path / ".venv/bin/python"
    find = "import importlib.util as u; print(u.find_spec('sgl').origin, u.find_spec('sgl.lang.sgl_function').origin)"
    found = subprocess.run(
        [python, "-c", find], cwd="/", env={"PATH": ""}, capture_output=True, text=True, check=True
    ).stdout.split()
    types = folder / "build/types"
    assert found == [str(types / "sgl/__init__.py"), str(types / "sgl/lang/sgl_function.py")]
    assert any(str(types) in roots for roots in get_search_dirs(str(python)))

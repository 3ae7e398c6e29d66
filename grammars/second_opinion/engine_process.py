"""Each engine works in a process of limited time and memory: grammars and texts may be made to exhaust either."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sgl.common.child_process.child_process import child_environment, how_it_ended
from sgl.common.process_memory import limit_memory
from sgl.grammars.compile import GrammarRecipe
from sgl.grammars.second_opinion.engine_table import ENGINES
from sgl.grammars.second_opinion.no_verdict_error import NoVerdictError

SECONDS = 30.0
MOST_MEMORY = 4 << 30
_PROGRAM = "from sgl.grammars.second_opinion import engine_process; engine_process.main()"
_READS = {"ebnf": "EBNF grammars", "regex": "regular expressions", "JSON schema": "JSON Schema"}


class Answer(NamedTuple):
    """Whether a text is accepted, or None and why that is not known."""

    accepts: bool | None
    reason: str


def answers_of(engine: str, recipe: GrammarRecipe, texts: Sequence[str], seconds: float) -> list[Answer]:
    """An engine's answers on all texts; no process is started where it does not read such grammars."""
    reads = ENGINES[engine]
    if recipe.kind not in reads:
        known = " and ".join(_READS[kind] for kind in reads if kind in _READS)
        return [Answer(None, f"it reads {known}")] * len(texts)
    output, reason = _run(pickle.dumps((engine, recipe, texts)), seconds) if texts else (b"", "")
    answers = [Answer(*json.loads(line)) for line in output.splitlines()]
    return answers + [Answer(None, reason)] * (len(texts) - len(answers))


def _run(work: bytes, seconds: float) -> tuple[bytes, str]:
    """The lines that the process wrote, and why there are no more."""
    command = [sys.executable, "-P", "-c", _PROGRAM]
    try:
        done = subprocess.run(command, input=work, capture_output=True, timeout=seconds, env=child_environment())
    except subprocess.TimeoutExpired as error:
        return _whole_lines(error.stdout or b""), f"no answer within {seconds:g} s"
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return _whole_lines(done.stdout), f"its process {how_it_ended(done.returncode)}: {last}"


def _whole_lines(output: bytes) -> bytes:
    return output[: output.rfind(b"\n") + 1]


def main() -> None:
    """The process: one line of JSON for each text, as soon as it is decided."""
    limit_memory(MOST_MEMORY)
    for answer in _answers(*pickle.load(sys.stdin.buffer)):
        print(json.dumps(answer), flush=True)


def _answers(engine: str, recipe: GrammarRecipe, texts: Sequence[str]) -> Iterator[Answer]:
    """Engines fail with errors of any class; none of them is a verdict."""
    try:
        accepts = ENGINES[engine][recipe.kind](recipe.source)
    except Exception as error:
        yield from [Answer(None, _reason(error))] * len(texts)
        return
    for text in texts:
        try:
            yield Answer(accepts(text), "")
        except Exception as error:
            yield Answer(None, _reason(error))


def _reason(error: Exception) -> str:
    if isinstance(error, NoVerdictError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"it needs more than {MOST_MEMORY >> 30} GB"
    return f"it failed with {type(error).__name__}: {error}"

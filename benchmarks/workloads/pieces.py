"""The measurement in pieces, each kept in its own file: what was interrupted goes on with the next piece."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .every import WORKLOADS
from .json_decoding import SCHEMA
from .ours import Ours, Run
from .switches import settings
from .work import Answer, Workload

ROOT = Path(__file__).parents[2]
ENOUGH = 2.0  # seconds; what has run so long is not run again
SWITCHES = "sgl"  # the piece in which sgl runs against itself


@dataclass(frozen=True)
class Piece:
    """One workload with one opponent: a peer, or sgl with parts switched off."""

    who: str
    workload: str

    @property
    def file(self) -> str:
        return f"{self.who}.{self.workload}.json"


class PeerMissing(RuntimeError):
    """A peer is not installed."""


class Peer:
    """A peer in a separate process, asked by lines of JSON."""

    def __init__(self, who: str, python: str, model: str, threads: int, links: str) -> None:
        command = [python, "-m", "benchmarks.workloads.peer", who, model, str(threads)]
        environment = {
            **os.environ,
            "PYTHONPATH": links,
            "TOKENIZERS_PARALLELISM": "false",
            "TQDM_DISABLE": "1",
            "HF_HUB_OFFLINE": "1",
        }
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            cwd=links,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.about = self._read()
        if "missing" in self.about:
            self.close()
            raise PeerMissing(
                f"{who} is not there ({self.about['missing']}); to install it: {python} -m pip install {who}"
            )

    def run(self, workload: str, programs: int, free_tokens: int) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(
            json.dumps({"workload": workload, "programs": programs, "free_tokens": free_tokens}) + "\n"
        )
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(10)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"the peer ended in the middle:\n{self._log.read()[-2000:]}")
        return json.loads(line)


@contextmanager
def importable() -> Iterator[str]:
    """A folder in which any Python finds this sgl and its benchmarks, whether they are installed there or not."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "sgl"
        package.mkdir()
        for path in (*(ROOT / "sgl").iterdir(), ROOT / "lang", ROOT / "runtime", ROOT / "grammars", ROOT / "common"):
            (package / path.name).symlink_to(path)
        (Path(folder) / "benchmarks").symlink_to(ROOT / "benchmarks")
        yield folder


class Measurer:
    """Measures pieces. rounds: how often; the median counts. short: few items of each workload."""

    def __init__(self, ours: Ours, python: str, links: str, rounds: int, short: bool) -> None:
        self.ours, self.rounds, self.short = ours, rounds, short
        self._python, self._links = python, links
        self._peers: dict[str, Peer] = {}

    def measure(self, piece: Piece, bar: tqdm) -> dict[str, Any]:
        """The piece's figures. Raises PeerMissing."""
        work = WORKLOADS[piece.workload]
        programs = work.few if self.short else work.programs
        head = {
            "who": piece.who,
            "workload": piece.workload,
            "programs": programs,
            "rounds": self.rounds,
            "load": os.getloadavg()[0],
            "at": time.strftime("%Y-%m-%d %H:%M"),
        }
        body = (
            self._switched(work, programs, bar)
            if piece.who == SWITCHES
            else self._against(piece.who, work, programs, bar)
        )
        return head | body

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()

    def _switched(self, work: Workload, programs: int, bar: tqdm) -> dict[str, Any]:
        """sgl with everything on and with parts off, in turns: each round begins with another one."""
        items, ways = work.items(programs), settings(work)
        for switches in (ways["everything on"], ways["all off"]):  # an engine each
            self.ours.run(work, work.items(1), switches)
        runs: dict[str, list[Run]] = {name: [] for name in ways}
        for turn in range(self.rounds):
            names = list(ways)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                if sum(run.seconds for run in runs[name]) > ENOUGH:
                    continue
                bar.set_description(f"{work.name}: {name}")
                runs[name].append(self.ours.run(work, items, ways[name]))
        whole = runs["everything on"][0].answers
        return {"settings": {name: self._summary(work, found, whole) for name, found in runs.items()}}

    def _summary(self, work: Workload, runs: list[Run], whole: list[Answer]) -> dict[str, Any]:
        seconds = [run.seconds for run in runs]
        answers = runs[0].answers
        equal = {"same_decisions": same(answers, whole, work.decisions), "same_texts": same(answers, whole, work.texts)}
        return {"seconds": statistics.median(seconds), "all_seconds": seconds, **runs[0].counts, **equal}

    def _against(self, who: str, work: Workload, programs: int, bar: tqdm) -> dict[str, Any]:
        """sgl and a peer in turns."""
        bar.set_description(f"{work.name}: {who} starts")
        peer = self._peer(who)
        items, free = work.items(programs), self.ours.free_tokens(work, programs)
        self.ours.run(work, work.items(1))
        peer.run(work.name, programs if peer.about["compiles"] else 1, free)  # not counted
        ours, theirs = [], []
        for _ in range(self.rounds):
            bar.set_description(f"{work.name}: sgl")
            ours.append(self.ours.run(work, items))
            bar.set_description(f"{work.name}: {who}")
            theirs.append(peer.run(work.name, programs, free))
            if sum(run["seconds"] for run in theirs) > 2 * ENOUGH:
                break
        return {**peer.about, **_compared(work, ours, theirs)}

    def _peer(self, who: str) -> Peer:
        if who not in self._peers:
            engine = self.ours.engine()
            self._peers[who] = Peer(who, self._python, engine.model_path, engine.info()["threads"], self._links)
        return self._peers[who]


def _compared(work: Workload, ours: list[Run], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    mine, answers = [run.seconds for run in ours], theirs[0]["answers"]
    return {
        "sgl_seconds": statistics.median(mine),
        "sgl_all_seconds": mine,
        "sgl_made": ours[0].counts["generated_tokens"],
        "seconds": statistics.median(run["seconds"] for run in theirs),
        "all_seconds": [run["seconds"] for run in theirs],
        "made": theirs[0]["made"],
        "same_decisions": same(answers, ours[0].answers, work.decisions),
        "same_texts": same(answers, ours[0].answers, work.texts),
        "valid_json": valid_json(answers, work),
        "sgl_valid_json": valid_json(ours[0].answers, work),
        "answer": answers[0],
    }


def valid_json(answers: list[Answer], work: Workload) -> list[int]:
    """[how many are objects with the schema's keys, of how many]; of workloads with grammars."""
    texts = [answer[name] for answer in answers for name in work.decisions] if work.grammars else []
    return [sum(map(_is_object, texts)), len(texts)]


def _is_object(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and set(found) == set(SCHEMA["required"])


def same(left: list[Answer], right: list[Answer], names: tuple[str, ...]) -> list[int]:
    """[how many of the named values are equal, of how many]; the items of lists count one by one."""
    pairs = [pair for a, b in zip(left, right, strict=True) for name in names for pair in _pairs(a[name], b[name])]
    return [sum(a == b for a, b in pairs), len(pairs)]


def _pairs(left: Any, right: Any) -> list[tuple[Any, Any]]:
    return list(zip(left, right, strict=True)) if isinstance(left, list) else [(left, right)]

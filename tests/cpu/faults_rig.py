"""Random faults of the processes of an engine while sequences run on it, and what must hold whatever happens."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from ranks_rig import alive, walk
from server_rig import await_true

from sgl.runtime import Engine
from sgl.runtime.errors import EngineDied
from sgl.runtime.process import remote_core

OPTIONS = {"dtype": "float32", "threads": 1, "kv_tokens": 2048, "max_running": 8, "heartbeat": 4.0}
KINDS: dict[str, dict[str, int]] = {
    "tensor parallel": {"tensor_parallel": 2},
    "pipeline parallel": {"pipeline_parallel": 2},
    "replicas": {"replicas": 2},
}
EXPERTS = {
    "experts that move": {"tensor_parallel": 2, "expert_parallel": True, "redundant_experts": 2, "rebalance_every": 3}
}  # of a mixture
WALKS = 6  # different ones
WHOLE = 6  # that end as they should, at least
FAULTS = ("kill", "stop", "delay", "delay", "delays of all")


class Soak:
    """engine: of several processes.  expected: what each walk finds on an engine of one."""

    def __init__(self, engine: Engine, expected: list[list[Any]], seed: int) -> None:
        self.engine, self.expected, self.rng = engine, expected, random.Random(seed)
        self.done: list[
            tuple[float, float, int, BaseException | None]
        ] = []  # walks: from, to, how often they were broken off
        self.wounds: list[tuple[float, float, int]] = []  # from, to, processes that a fault made useless
        self.pids, self.wrong, self.counts = set(self.now), list[BaseException](), Counter[str]()
        self._over = threading.Event()

    @property
    def now(self) -> list[int]:
        """The processes that there are."""
        info = self.engine.info()
        return list(info["pids"] if "pids" in info else info["rank_pids"])

    @property
    def whole(self) -> int:
        """Walks that nothing broke off."""
        return sum(error is None for *_, error in list(self.done))

    def run(self, seconds: float, walkers: int = 3, faults: tuple[str, ...] = FAULTS) -> None:
        threads = [threading.Thread(target=self._walk, args=(number,)) for number in range(walkers)]
        for thread in threads:
            thread.start()
        until, left = time.monotonic() + seconds, list(faults)
        try:
            while left or time.monotonic() < until:
                time.sleep(self.rng.uniform(0.05, 1.5))
                self._fault(left.pop(0) if left else self.rng.choice(faults))
            await_true(lambda: self.whole >= WHOLE, 120)  # however slow the machine is
        finally:
            self._over.set()
            for thread in threads:
                thread.join(120)
        assert not any(thread.is_alive() for thread in threads), "a walk hangs"

    def _walk(self, number: int) -> None:
        rng = random.Random(number)
        while not self._over.is_set():
            which, began = rng.randrange(WALKS), time.monotonic()
            error: BaseException | None = None
            try:
                for ours, asked in zip(walk(self.engine, which), self.expected[which], strict=True):
                    np.testing.assert_allclose(np.array(ours), np.array(asked), atol=1e-3)
            except EngineDied as died:
                error = died
                time.sleep(0.05)
            except BaseException as other:
                self.wrong.append(other)
            self.done.append((began, time.monotonic(), number, error))

    def _fault(self, kind: str) -> None:
        self.counts[kind] += 1
        pids, began = self.now, time.monotonic()
        hit = pids if kind == "delays of all" else [self.rng.choice(pids)]
        if kind.startswith("delay"):
            self._send(signal.SIGSTOP, hit)
            time.sleep(self.rng.uniform(0.02, 0.8))
            self._send(signal.SIGCONT, hit)
            return
        self._send(signal.SIGKILL if kind == "kill" else signal.SIGSTOP, hit)
        together = "replicas" not in self.engine.info() or self.engine.info()["replicas"] == 1
        await_true(lambda: not any(map(alive, pids if together else hit)), 60)
        await_true(lambda: not set(self.now) & set(pids if together else hit) and self._all_up(), 120)
        self.pids |= set(self.now)
        self.wounds.append((began, time.monotonic(), len(hit)))

    def _all_up(self) -> bool:
        core = self.engine._core
        return all(each.up for each in getattr(core, "_cores", [core]))

    def _send(self, number: int, pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, number)

    def check(self) -> None:
        """What is wrong with what the walks found.

        A walk may break off only where a process died that it could have run on.
        """
        assert not self.wrong, self.wrong[0]
        for began, ended, _, error in self.done:
            if error is not None:
                assert any(start <= ended and began <= stop for start, stop, _ in self.wounds), (
                    f"broken off with nothing dead: {error}"
                )

    def told(self) -> dict[str, Any]:
        return {
            "walks": len(self.done),
            "broken off": len(self.done) - self.whole,
            "restarts": len(self.wounds),
            "processes": len(self.pids),
            **self.counts,
        }


def soak(
    path: Path, kind: str, seconds: float, seed: int, folder: Path, monkeypatch: Any, faults: tuple[str, ...] = FAULTS
) -> dict[str, Any]:
    """Raises AssertionError for what must not be. folder: empty, for temporary files."""
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(remote_core, "STEADY", 0.0)  # each death is the first of its row
    shared = set(os.listdir("/dev/shm"))
    with Engine(path, **OPTIONS | {"heartbeat": None}) as one:
        expected = [walk(one, which) for which in range(WALKS)]
    with Engine(path, **OPTIONS | (KINDS | EXPERTS)[kind]) as engine:
        found = Soak(engine, expected, seed)
        found.run(seconds, faults=faults)
        assert engine.generate("abc", max_tokens=4, temperature=0).token_ids
        found.pids |= set(found.now)
    found.check()
    await_true(lambda: not any(map(alive, found.pids)))
    assert not [*folder.iterdir()], "temporary files are left"
    assert not {name for name in set(os.listdir("/dev/shm")) - shared if "sgl" in name}
    return found.told()

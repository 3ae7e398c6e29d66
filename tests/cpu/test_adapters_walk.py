"""Random walks over an engine with adapters: opened, forked, aborted, evicted, given other
contents; every text is what its adapter writes alone.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import torch
import transformers
from peft_adapters import make_adapter

from sgl import grammars
from sgl.runtime import Engine
from sgl.runtime.errors import ConfigError, RequestAborted
from sgl.runtime.sampling.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
CONTENTS = 6
PROMPTS = [list(range(40, 40 + n)) for n in (3, 17, 40)]
CHOICES = [[50, 51, 52], [50, 60], [61]]


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory) -> list[Path]:
    path = tmp_path_factory.mktemp("walked")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    for i in range(CONTENTS):
        make_adapter(model, path / str(i), seed=i, r=3 + 5 * (i % 3))
    return [path / str(i) for i in range(CONTENTS)]


class Walk:
    """names: what each means now, by the number of its contents."""

    def __init__(self, engine: Engine, folders: list[Path], seed: int) -> None:
        self.engine, self.folders, self.rng = engine, folders, Random(seed)
        self.names: dict[str, int] = {}
        self.grammar = grammars.compile_regex('(\\{"name": "[a-z]{1,4}"\\}|[0-9]+)', engine.vocabulary)
        self.known: dict[tuple, object] = {}
        self.asked: list[tuple[tuple, object]] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choice(
                [self.load, self.unload, self.ask, self.ask, self.ask, self.fork, self.abort, self.forget]
            )()
        for key, future in self.asked:
            assert answer(future) == pytest.approx(self.alone(key), abs=1e-3), (
                key
            )  # tokens: the same; log-probabilities: nearly

    def load(self) -> None:
        name, content = self.rng.choice("abcd"), self.rng.randrange(CONTENTS)
        self.engine.adapters.load(name, self.folders[content], pin=self.rng.random() < 0.2)
        self.names[name] = content

    def unload(self) -> None:
        for name in self.rng.sample(sorted(self.names), min(1, len(self.names))):
            with suppress(ConfigError):  # in use
                self.engine.adapters.unload(name)
                del self.names[name]

    def ask(self) -> None:
        name, prompt = self._name(), self.rng.randrange(len(PROMPTS))
        sequence = self.engine.open(adapter=name)
        sequence.extend(PROMPTS[prompt])
        self._question(sequence, self.names.get(name or ""), prompt)

    def fork(self) -> None:
        names, prompt = [self._name() for _ in range(4)], self.rng.randrange(len(PROMPTS))
        parent = self.engine.open(adapter=names.pop())
        parent.extend(PROMPTS[prompt])
        for name, child in zip(names, parent.fork(3, adapter=names), strict=True):
            self._question(child, self.names.get(name or ""), prompt)

    def abort(self) -> None:
        sequence = self.engine.open(adapter=self._name())
        sequence.extend(PROMPTS[2])
        future = sequence.generate(GREEDY)
        sequence.abort()
        with suppress(RequestAborted):
            future.result()

    def forget(self) -> None:
        self.engine.flush_cache()

    def alone(self, key: tuple) -> object:
        """By an adapter that nothing else was ever computed beside."""
        if key not in self.known:
            content, prompt, kind = key
            name = None if content is None else f"alone{content}"
            if name is not None:
                self.engine.adapters.load(name, self.folders[content])
            self.engine.flush_cache()
            sequence = self.engine.open(adapter=name)
            sequence.extend(PROMPTS[prompt])
            self.known[key] = answer(self._future(sequence, kind))
        return self.known[key]

    def _name(self) -> str | None:
        return self.rng.choice([None, *sorted(self.names)])

    def _question(self, sequence, content: int | None, prompt: int) -> None:
        kind = self.rng.choice(["text", "grammar", "scores"])
        self.asked.append(((content, prompt, kind), self._future(sequence, kind)))

    def _future(self, sequence, kind: str):
        self.held = [*getattr(self, "held", []), sequence][-6:]  # some stay open, others are closed behind their work
        if kind == "scores":
            return sequence.score(CHOICES)
        return sequence.generate(GREEDY, self.grammar if kind == "grammar" else None)


def answer(future) -> object:
    found = future.result()
    if isinstance(found, list):
        return [score for choice in found for score, _ in choice]
    return found.token_ids


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(4))
def test_a_walk_writes_what_each_adapter_writes_alone(tiny, folders, seed):
    options = {"adapter_slots": {8: 1, 16: 1}, "adapter_memory": 0} if seed % 2 else {}
    with Engine(
        tiny,
        dtype="float32",
        threads=1,
        kv_tokens=2048,
        max_running=5,
        speculation="auto" if seed > 1 else False,
        **options,
    ) as engine:
        core = engine._core
        check = core.check

        def evict() -> None:
            core.adapters.slots.evict_all()
            check()

        core.after_step = evict
        Walk(engine, folders, seed).run(80)
        assert engine.stats().adapters["slots_held"] == 0

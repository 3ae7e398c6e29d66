"""Programs, random and fixed, and a backend for them: what the tests of the journal share."""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter

from lang_rules import RuleBackend, RuleStream

import sgl
from sgl.lang.journal import record


def digest(prompt: str, request) -> str:
    """A few letters that depend on all of the prompt and on the seed."""
    seed = 0 if request.options.temperature == 0 else request.options.seed
    code = hashlib.blake2b(f"{prompt}|{seed}|{request.options.max_new_tokens}".encode(), digest_size=3).hexdigest()
    return f"{code[:3]} {code[3:]} "


class LoggedStream(RuleStream):
    def fork(self, size):
        children = [LoggedStream(self.backend) for _ in range(size)]
        self.backend.open_streams += size
        self.backend.worker.submit(self._give_birth, children)
        return list(children)

    def _select(self, request):
        self.backend.asked[self.text, request.name, request.seed] += 1
        return super()._select(request)

    def _generate(self, request, on_chunk):
        self.backend.asked[self.text, request.name, request.options.seed] += 1
        return super()._generate(request, on_chunk)


class LoggedBackend(RuleBackend):
    """`asked` counts (prompt, name, seed) of every gen and select that was really computed."""

    def __init__(self, rule=digest, template="default"):
        super().__init__(rule, template)
        self.asked: Counter = Counter()

    def open(self):
        self.open_streams += 1
        return LoggedStream(self)

    @property
    def count(self) -> int:
        return sum(self.asked.values())


def random_spec(rng: random.Random, depth: int = 0, names: list[str] | None = None) -> list:
    """A program as data: literals, gens, samples, selects, reads, and forks of such programs."""
    names = [] if names is None else names
    spec: list = []
    for _ in range(rng.randint(2, 5)):
        kind = rng.choice(["text", "gen", "gen", "greedy", "samples", "select", "read", "fork"])
        name = f"{'abc'[depth]}{len(names)}"
        if kind == "fork" and depth < 2:
            branches = [random_spec(rng, depth + 1, list(names)) for _ in range(rng.randint(1, 3))]
            spec.append(("fork", branches, rng.choice(["gather_variable", "concate_and_append", "read"])))
        elif kind == "read" and names:
            spec.append(("read", rng.choice(names)))
        elif kind in ("gen", "greedy", "samples", "select"):
            spec.append((kind, name))
            names.append(name)
        else:
            spec.append(("text", rng.choice([" and", " then", "; "])))
    return spec


@sgl.function
def play(s, spec, mark="go"):
    """Runs such a program. Literals number the nodes, so that no two prompts are equal by chance."""
    s += mark
    perform(s, spec, "")


def perform(s, spec, place):
    for index, (kind, *rest) in enumerate(spec):
        here = f"{place}{index}"
        s += f" {here}:"
        if kind == "text":
            s += rest[0]
        elif kind == "gen":
            s += sgl.gen(rest[0])
        elif kind == "greedy":
            s += sgl.gen(rest[0], temperature=0)
        elif kind == "samples":
            s += sgl.gen(rest[0], n=2)
        elif kind == "select":
            s += sgl.select(rest[0], ["yes", "no"])
        elif kind == "read":
            s += f"[{s[rest[0]]}]"
        else:
            branch(s, *rest, here)


def branch(s, branches, join, place):
    forks = s.fork(len(branches))
    for number, (child, spec) in enumerate(zip(forks, branches, strict=True)):
        perform(child, spec, f"{place}.{number}.")
    if join == "read":
        s += "".join(child.text()[-5:] for child in forks)
    else:
        forks.join(join)


def facts(state) -> tuple:
    """All that can be known of a finished state."""
    executor = state.stream_executor
    return state.text(), dict(executor.variables), dict(executor.meta_info), str(state.error() or "")


@sgl.function
def trip(s, city):
    s += "City: " + city + "\nSeason: " + sgl.gen("season", max_tokens=8)
    forks = s.fork(3)
    for part, child in zip(("eat", "see", "sleep"), forks, strict=True):
        child += f"\n{part}: " + sgl.gen("tip") + sgl.select("rank", ["high", "low"])
    s += "\nAll: " + "; ".join(child["tip"] for child in forks) + "\nVerdict: " + sgl.gen("verdict")


CITIES = [{"city": f"c{number}"} for number in range(12)]


def slow(prompt, request):
    time.sleep(0.01)
    return digest(prompt, request)


def record_slowly(path: str) -> None:
    """What the process that is killed does."""
    with record(path, LoggedBackend(slow), seed=7) as backend:
        trip.run_batch(CITIES, backend=backend)

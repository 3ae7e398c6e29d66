"""Which tests run, and in which order.

`make test` runs the short selection. `make test-all` (`pytest --whole`) runs all tests, and `pytest --rest` those that
the short selection leaves out. Of a test with several lists of parameters the short selection has the fewest cases in
which each value of each list occurs. Where a test uses `open_engine`, engines step in one of the two ways, in turns.
Marks say more:

    whole       this test, or this case of its parameters, is not in the short selection
    few(n)      at most n cases are, evenly distributed
    product     all combinations of its parameters are
    stepping    both ways to step are

A test that is named by its node id always runs.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from alone import INSIDE

DURATIONS = Path(__file__).parent / "durations.txt"  # of each file: seconds in the short selection, in the whole
HOW = "short selection: {} more tests run with `make test-all` or `pytest --whole`"
COUNT = pytest.StashKey[int]()
WAYS = {"in-step", "ahead"}  # of open_engine


def ids(case: Any) -> list[str]:
    """Of its parameters, one of each list."""
    return list(case.callspec._idlist) if hasattr(case, "callspec") else []


def values(case: Any) -> set[Hashable]:
    return set(enumerate(ids(case)))


def covering(cases: Sequence[Any]) -> list[Any]:
    """Greedy: the case with the most values that are missing, and of several such cases the one with the rarest."""
    missing: set[Hashable] = set().union(*map(values, cases))
    used: Counter[Hashable] = Counter()
    chosen: list[int] = []

    def gain(place: int) -> tuple[int, int]:
        found = values(cases[place])
        return len(found & missing), -sum(used[value] for value in found)

    while missing:
        chosen.append(max(range(len(cases)), key=gain))
        missing -= values(cases[chosen[-1]])
        used.update(values(cases[chosen[-1]]))
    return [cases[place] for place in sorted(chosen)]


def thinned(cases: Sequence[Any], most: int) -> list[Any]:
    """At most so many, evenly from the first to the last."""
    if len(cases) <= most:
        return list(cases)
    return [cases[(2 * place + 1) * len(cases) // (2 * most)] for place in range(most)]


def one_way(cases: Sequence[Any], turn: int) -> list[Any]:
    """In turns one of the ways to step, for each case of the other parameters."""
    by_rest: dict[Hashable, list[Any]] = defaultdict(list)
    for case in cases:
        by_rest[tuple(value for value in ids(case) if value not in WAYS)].append(case)
    return [each[(turn + place) % len(each)] for place, each in enumerate(by_rest.values())]


def short(items: Sequence[Any]) -> Iterator[Any]:
    tests: dict[Hashable, list[Any]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("whole") is None:
            tests[item.nodeid.partition("[")[0]].append(item)
    for turn, cases in enumerate(tests.values()):
        marked, few = cases[0].get_closest_marker, cases[0].get_closest_marker("few")
        if "open_engine" in getattr(cases[0], "fixturenames", ()) and not marked("stepping"):
            cases = one_way(cases, turn)
        if len(ids(cases[0])) > 1 and not marked("product"):
            cases = covering(cases)
        yield from cases if few is None else thinned(cases, few.args[0])


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection of tests").addoption
    group("--whole", action="store_true", help="run all tests")
    group("--rest", action="store_true", help="run the tests that the short selection leaves out")
    group("--record-durations", action="store_true", help="write the seconds of the files that ran to durations.txt")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.record_durations and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config.option.whole), "durations")
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(Counting(), "counting")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (config.option.whole or INSIDE in os.environ or any("::" in argument for argument in config.args)):
        kept = set(short(items))
        left = [item for item in items if (item in kept) == config.option.rest]
        items[:] = [item for item in items if (item in kept) != config.option.rest]
        config.hook.pytest_deselected(items=left)
        config.stash[COUNT] = 0 if config.option.rest else len(left)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left"] = config.stash.get(COUNT, 0)
        longest_first(items, config.option.whole)


class Counting:
    """The process that starts workers collects nothing: they report how many tests they leave out."""

    def pytest_testnodedown(self, node: Any) -> None:
        node.config.stash[COUNT] = getattr(node, "workeroutput", {}).get("left", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(COUNT, 0):
        terminalreporter.write_line(HOW.format(count))


def durations() -> dict[str, tuple[float, float]]:
    lines = (line.split() for line in DURATIONS.read_text().splitlines())
    return {file: (float(short), float(whole)) for short, whole, file in lines}


def longest_first(items: list[pytest.Item], whole: bool) -> None:
    """Workers take file after file: the last ones are short. A file that is not recorded counts as the average."""
    seconds = {file: both[whole] for file, both in durations().items()}
    usual = mean(seconds.values())
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], usual))


class Recorder:
    """Writes the durations of the files that ran; those of others stay as they are."""

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        found = durations()
        for file, seconds in self._seconds.items():
            before = found.get(file, (seconds, seconds))
            found[file] = (before[0], seconds) if self._whole else (seconds, max(seconds, before[1]))
        lines = (f"{short:6.1f} {whole:6.1f} {file}\n" for file, (short, whole) in sorted(found.items()))
        DURATIONS.write_text("".join(lines))

"""The picture of a running engine's cache and the record of its steps, in this process and in one of its own."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sgl.runtime import CacheTree, Engine, SamplingParams, StepRecord
from sgl.runtime.cache.view.cache_tree_nodes import CacheNode
from sgl.runtime.errors import EngineClosed

GREEDY = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
OPTIONS = {"dtype": "float32", "threads": 1, "kv_tokens": 2048}


@pytest.fixture(scope="module", params=[False, True], ids=["here", "process"])
def opened(tiny, request):
    with Engine(tiny, process=request.param, **OPTIONS) as engine:
        yield engine


@pytest.fixture
def engine(opened):
    opened.flush_cache()
    return opened


def prefixes(tree: CacheTree, namespace: str = "") -> set[tuple[int, ...]]:
    """Every prefix that the tree has, token by token."""
    if namespace not in tree.roots:
        return set()
    found: set[tuple[int, ...]] = set()
    stack: list[tuple[CacheNode, tuple[int, ...]]] = [(tree.roots[namespace], ())]
    while stack:
        node, before = stack.pop()
        tokens = node.tokens.tolist()
        found |= {(*before, *tokens[: i + 1]) for i in range(len(tokens))}
        stack += [(child, (*before, *tokens)) for child in node.children]
    return found


def beginnings(tokens: np.ndarray) -> set[tuple[int, ...]]:
    row = tokens.tolist()
    return {tuple(row[: i + 1]) for i in range(len(row))}


def prefilled(engine: Engine, text: str, **options):
    sequence = engine.open(**options)
    sequence.extend(engine.tokenizer.encode(text))
    sequence.prefill().result()
    return sequence


def test_random_programs_leave_what_they_computed(engine):
    draw = random.Random(3)
    expected: set[tuple[int, ...]] = set()
    for _ in range(12):
        parent = prefilled(engine, "".join(draw.choice("ab ") for _ in range(draw.randrange(1, 9))))
        for child in [parent, *parent.fork(draw.randrange(3))]:
            child.extend(engine.tokenizer.encode(draw.choice(["x", "yes", "no"])))
            child.generate(GREEDY).result()
            expected |= beginnings(child.tokens()[:-1])  # the last sampled token was never computed
    tree = engine.cache_tree()
    assert prefixes(tree) == expected
    assert tree.tokens == len(expected)
    for node in tree.nodes():
        assert node.text == engine.tokenizer.decode(node.tokens, skip_special_tokens=False)
        firsts = [int(child.tokens[0]) for child in node.children]
        assert len(firsts) == len(set(firsts))
    engine.check()


def test_who_stands_on_a_node_locks_its_path_and_nothing_else(engine):
    parent = prefilled(engine, "a common beginning")
    left, right = parent.fork(2)
    left.extend(engine.tokenizer.encode(" and more"))
    left.prefill().result()
    tree = engine.cache_tree()
    [common] = tree.roots[""].children
    [more] = common.children
    assert (common.locks, more.locks) == (3, 1)
    assert {row.sequence: row.status for row in common.rows} == {parent.id: "idle", right.id: "idle"}
    assert [row.sequence for row in more.rows] == [left.id]
    left.close()
    assert [node.locks for node in engine.cache_tree().nodes()] == [2, 0]
    assert engine.cache_tree().next_evicted.text == more.text


def test_what_is_computed_but_not_in_the_tree_is_shown_with_its_sequence(engine):
    sequence = prefilled(engine, "go")
    seen: list[CacheTree] = []
    done = sequence.generate(SamplingParams(max_tokens=200, temperature=0, ignore_eos=True))
    while not done.done():
        seen.append(engine.cache_tree())
    rows = [row for tree in seen for node in tree.nodes() for row in node.rows if len(row.tokens)]
    assert rows and {row.sequence for row in rows} == {sequence.id}
    whole = sequence.tokens().tolist()
    assert all(row.tokens.tolist() == whole[2 : 2 + len(row.tokens)] for row in rows)


def test_pins_and_namespaces_are_told(engine):
    with engine.pin("keep this") as pin:
        prefilled(engine, "other", namespace="b").close()
        tree = engine.cache_tree()
        assert set(tree.roots) == {"", "b"}
        [node] = tree.roots[""].children
        assert node.pinned and node.locked and len(node) == pin.tokens
        assert not any(each.pinned or each.locked for each in tree.roots["b"].nodes())
    assert not any(node.pinned for node in engine.cache_tree().nodes())


def test_a_flush_leaves_an_empty_tree(engine):
    prefilled(engine, "something").close()
    assert engine.cache_tree().tokens
    engine.flush_cache()
    tree = engine.cache_tree()
    assert tree.tokens == 0 and not list(tree.nodes()) and tree.pages_free == tree.pages_total == 2048


def test_a_sleeping_engine_shows_its_tree(tiny):
    with Engine(tiny, **OPTIONS) as engine:
        prefilled(engine, "something")
        engine.sleep()
        assert engine.cache_tree().tokens == 0
        engine.wake()


@pytest.mark.whole
def test_both_processes_show_the_same(tiny):
    shown = []
    for process in (False, True):
        with Engine(tiny, process=process, **OPTIONS) as engine:
            parent = prefilled(engine, "the same beginning")
            for child, text in zip(parent.fork(2), (" left", " right"), strict=True):
                child.extend(engine.tokenizer.encode(text))
                child.generate(GREEDY).result()
            shown.append((str(engine.cache_tree()), engine.cache_tree().svg()))
    assert shown[0] == shown[1]


# steps


def parts(steps: list[StepRecord], sequence: int) -> list[tuple[int, int]]:
    return [(part.start, part.stop) for step in steps for part in step.parts if part.sequence == sequence]


def test_steps_tell_every_token_that_was_computed(engine):
    before = engine.stats()
    with engine.trace_steps() as steps:
        sequence = prefilled(engine, "some words")
        sequence.generate(GREEDY).result()
        assert not steps, "filled when the block ends"
    spent = engine.stats() - before
    assert sum(step.tokens for step in steps) == spent.computed_tokens
    assert len(steps) == spent.steps and 0 < sum(step.seconds for step in steps) < 20
    spans = parts(steps, sequence.id)
    length = len(engine.tokenizer.encode("some words"))
    assert spans[0] == (0, length) and spans[-1][1] == len(sequence.tokens()) - 1
    assert sum(part.samples for step in steps for part in step.parts) == 5
    assert {part.kind for step in steps for part in step.parts} == {"prefill", "generate"}


def test_a_second_run_is_told_as_cached(engine):
    prefilled(engine, "a prompt of some words").close()
    with engine.trace_steps() as steps:
        again = engine.open()
        again.extend(engine.tokenizer.encode("a prompt of some words"))
        again.generate(SamplingParams(max_tokens=1, temperature=0)).result()
    [part] = [part for step in steps for part in step.parts]
    length = len(engine.tokenizer.encode("a prompt of some words"))
    assert (part.start, part.stop, part.cached, part.samples) == (length - 1, length, length - 1, True)


def test_traces_end_by_themselves_and_do_not_mix(engine):
    with engine.trace_steps() as outer:
        prefilled(engine, "one")
        with engine.trace_steps() as inner:
            prefilled(engine, "another")
        prefilled(engine, "last")
    assert len(inner) == 1 and len(outer) == 3 and outer[1] == inner[0]
    with pytest.raises(ZeroDivisionError), engine.trace_steps() as failed:
        prefilled(engine, "not lost")
        1 / 0  # noqa: B018
    assert len(failed) == 1
    with engine.trace_steps() as nothing:
        pass
    assert nothing == []


def test_pressure_is_told(tiny):
    with Engine(tiny, dtype="float32", threads=1, kv_tokens=96, step_tokens=16) as engine:
        prefilled(engine, "an old prefix that nobody holds").close()
        with engine.trace_steps() as steps:
            rows = []
            for i in range(4):
                rows.append(engine.open())
                rows[-1].extend(engine.tokenizer.encode(f"{i} begins here"))
            done = [row.generate(SamplingParams(max_tokens=40, temperature=0, ignore_eos=True, seed=1)) for row in rows]
            [each.result() for each in done]
        stats = engine.stats()
    assert max(step.tokens for step in steps) <= 16 and any(step.waiting for step in steps)
    assert sum(len(step.preempted) for step in steps) == stats.preemptions > 0
    assert sum(step.evicted for step in steps) > 0 and all(0 <= step.pages_free <= 96 for step in steps)
    lost = {number for step in steps for number in step.preempted}
    again = [part for step in steps for part in step.parts if part.sequence in lost and part.cached]
    assert again and all(part.cached <= part.start for part in again), "what was lost is found in the cache again"
    assert sum(part.cached for part in again) <= stats.cached_tokens


@pytest.mark.whole
@pytest.mark.parametrize("process", [False, True])
def test_a_trace_does_not_hide_the_error_of_its_block(tiny, process):
    engine = Engine(tiny, process=process, **OPTIONS)
    with pytest.raises(ZeroDivisionError), engine.trace_steps():
        engine.close()
        1 / 0  # noqa: B018
    with pytest.raises(EngineClosed), engine.trace_steps():
        pass

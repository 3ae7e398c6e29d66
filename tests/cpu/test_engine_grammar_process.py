"""An engine whose grammars another process compiles: the same texts, what it says
of itself, and that nothing is left behind.
"""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hostile_requests import hostile
from server_rig import await_true

from sgl.grammars import GrammarError, compile_json_schema
from sgl.grammars.compile_client import grammar_compile_policy
from sgl.grammars.compile_client.remote_transition_network import RemoteNetwork
from sgl.grammars.network.transition_network import UNBUILT
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.errors import ConfigError

PLAIN = {
    "properties": {"city": {"type": "string", "maxLength": 20}, "guests": {"type": "integer"}},
    "required": ["city", "guests"],
}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Engines that other tests have open do not count."""
    monkeypatch.setattr(grammar_compile_policy, "_STATE", grammar_compile_policy._State())


def children() -> set[int]:
    return {int(number) for path in Path("/proc/self/task").glob("*/children") for number in path.read_text().split()}


def written(engine: Engine) -> list[str]:
    """What hostile requests get, four at a time, and an ordinary one beside each."""
    draw = random.Random(9)
    requests = [(hostile(draw), draw.randrange(10**6)) for _ in range(10)]

    def one(asked) -> str:
        request, seed = asked
        try:
            grammar = request.compile(engine.vocabulary).prepared()
            params = SamplingParams(max_tokens=12, temperature=1.5, seed=seed, error_on_truncation=False)
            return (
                engine.generate("Value: ", params, grammar=grammar).text
                + engine.generate("Guests: ", params, grammar=PLAIN).text
            )
        except GrammarError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, requests))


def test_an_idle_engine_makes_what_grammars_need(tiny: Path) -> None:
    """Without a grammar, after work too, and only once; one schema starts no process."""
    there = children()
    with Engine(tiny, threads=1, dtype="float32", kv_tokens=512) as engine:
        engine.generate("a", max_tokens=2)
        await_true(lambda: engine.vocabulary.native is not None, 60)
        made = engine.vocabulary.native
        engine.generate("Guests: ", max_tokens=40, grammar=PLAIN)
        assert engine.vocabulary.native is made and engine.info()["grammars"]["compiled"] == "in this process"
        assert children() == there


def test_texts_are_the_same_and_nothing_is_left(bundled):
    there = children()
    plain = written(bundled)
    with Engine(threads=1, grammar_process=True) as engine:
        assert engine.info()["grammars"]["compiled"] == "in a separate process"
        await_true(lambda: len(children() - there) == 1, 60)  # before the first grammar, as the engine is idle
        assert written(engine) == plain
        grammar = compile_json_schema({"type": "integer", "minimum": 17}, engine.vocabulary)
        assert isinstance(grammar.automaton.network, RemoteNetwork)
        engine.check()
    assert children() <= there and grammar_compile_policy.describe() == "in this process"


def test_a_request_whose_rules_are_lost_goes_on(bundled):
    with Engine(threads=1, grammar_process=True) as engine:
        schema = {
            "items": {"type": "string", "minLength": 20, "maxLength": 300, "pattern": "(a|b){9,40}"},
            "minItems": 1,
            "type": "array",
        }
        grammar = compile_json_schema(schema, engine.vocabulary)
        assert UNBUILT in grammar.automaton.network.entries
        running = grammar_compile_policy.process()
        os.kill(running.child.pid, signal.SIGKILL)
        while running.ended is None:
            time.sleep(0.001)
        params = SamplingParams(max_tokens=10, temperature=1.0, seed=4, error_on_truncation=False)
        found = engine.generate("{", params, grammar=grammar).text
        assert grammar_compile_policy.process() is not running
    assert (
        found
        == bundled.generate("{", params, grammar=compile_json_schema(grammar.recipe.source[0], bundled.vocabulary)).text
    )


def test_what_is_refused():
    with pytest.raises(ConfigError, match=r"grammar_process=2\): must be True, False or None"):
        EngineConfig.from_options({"grammar_process": 2})
    with pytest.raises(ConfigError, match=r"grammar_process=True\) is not supported on GPUs, here: cuda; leave it out"):
        EngineConfig.from_options({"grammar_process": True}).on("cuda")
    assert EngineConfig.from_options({}).on("cuda").grammar_process is False
    assert EngineConfig.from_options({}).on("cpu").grammar_process is None

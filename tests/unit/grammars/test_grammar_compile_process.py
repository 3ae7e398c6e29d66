"""Grammars that a process of its own compiles: the same as those compiled here,
and what happens when that process ends.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import pkgutil
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from grammar_support import JSON_PIECES, allowed, byte_vocabulary, many

sys.path.insert(0, str(Path(__file__).parents[2] / "cpu"))
from hostile_requests import hostile

import sgl.grammars.compile
from sgl import grammars
from sgl.common.child_process.serialized_error import SerializedError
from sgl.grammars import (
    Grammar,
    GrammarError,
    GrammarLimitError,
    SchemaOptions,
    UnsupportedGrammarError,
    Vocabulary,
    compile_choices,
    compile_ebnf,
    compile_regex,
    set_cache_dir,
)
from sgl.grammars.compile import GrammarRecipe
from sgl.grammars.compile_client import grammar_compile_client, grammar_compile_messages, grammar_compile_policy
from sgl.grammars.compile_client.remote_transition_network import RemoteNetwork
from sgl.grammars.compile_server import grammar_compile_server
from sgl.grammars.network.transition_network import UNBUILT

grammar_compile_server.MOST_BYTES = 1 << 60  # in this process, which has engines of other tests and must not end
MARK = b"<|mark|>"
TAGS = {
    "type": "structural_tag",
    "triggers": ["<f"],
    "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
}
KINDS = [
    ("regex", "[a-c]{2,5}(x|yé)*"),
    ("choices", ("one", "two", "twelve")),
    (
        "JSON schema",
        (
            '{"properties": {"a": {"$ref": "#"}, "b": {"type": "string", "minLength": 3, "maxLength": 900}}, '
            '"required": ["a"]}',
            SchemaOptions.of({}),
        ),
    ),
    (
        "JSON schema",
        ('{"type": "array", "items": {"type": "string"}, "uniqueItems": true, "minItems": 3}', SchemaOptions.of({})),
    ),
    (
        "JSON schema",
        ('{"items": {"type": "string", "x-copied": "words"}, "x-copied-from": "the é, a \\n"}', SchemaOptions.of({})),
    ),
    ("JSON schema", ('{"$ref": "mem:one"}', SchemaOptions.of({"resources": {"mem:one": {"enum": ["far", 1]}}}))),
    ("ebnf", ('start: "a" start "b" | X\n%import .more.X\n', "lark", None, (("more", 'X: "x"+ "é"?'),), None)),
    ("structural tag", (json.dumps(TAGS), SchemaOptions.of({}))),
]
LAZY = GrammarRecipe(
    "JSON schema",
    (
        '{"items": {"type": "string", "minLength": 20, "maxLength": 300, "pattern": "(a|b){9,40}"}}',
        SchemaOptions.of({}),
    ),
)


def vocabulary() -> Vocabulary:
    made = byte_vocabulary([*JSON_PIECES, MARK])
    return Vocabulary.from_bytes(made.tokens, made.eos_ids, [made.tokens.index(MARK)])


@pytest.fixture
def alone(monkeypatch):
    """Nobody uses it yet."""
    monkeypatch.setattr(grammar_compile_policy, "_STATE", grammar_compile_policy._State())


@pytest.fixture
def use(alone):
    found = grammar_compile_policy.CompileProcessUse(True)
    yield found
    found.leave()


@pytest.fixture(scope="module")
def up():
    """One process for many tests."""
    found = grammar_compile_policy.CompileProcessUse(True)
    yield found
    found.leave()


def walk(make, seed: int, steps: int = 10) -> list[object]:
    """What a random text meets: masks, what is forced, how far its end is; or the error of the grammar."""
    draw, found = random.Random(seed), []
    try:
        matcher = make().matcher()
        for _ in range(steps):
            ids = sorted(allowed(matcher.mask()))
            found.append(ids)
            assert matcher.accept(draw.choice(ids))
            if matcher.finished:
                break
        found += [matcher.forced(), matcher.can_end, len(matcher.shortest_end())]  # several may be equally short
    except GrammarError as error:
        found.append((type(error), str(error), vars(error)))
    return found


def here(recipe: GrammarRecipe, vocabulary: Vocabulary) -> Grammar:
    """Compiled in this process."""
    return Grammar(recipe.compile(vocabulary.bare).network, vocabulary.spelling(recipe.shown))


@pytest.mark.parametrize("recipe", KINDS, ids=lambda kind: kind[0])
def test_every_kind_is_the_same_grammar(up, recipe):
    words = vocabulary()
    apart = GrammarRecipe(*recipe).compile(words)
    assert isinstance(apart.automaton.network, RemoteNetwork)
    for seed in range(5):
        assert walk(lambda: apart, seed) == walk(lambda: here(GrammarRecipe(*recipe), words), seed)


def test_marks_that_are_text_are_the_same_grammar(up):
    words = vocabulary()
    recipe = GrammarRecipe(
        "structural tag",
        (json.dumps({"type": "const_string", "value": "a" + MARK.decode()}), SchemaOptions.of({})),
        frozenset(words.special_ids),
    )
    assert walk(lambda: recipe.compile(words), 1) == walk(lambda: here(recipe, words), 1)
    assert words.tokens.index(MARK) in walk(lambda: recipe.compile(words), 1)[1]


def test_random_hostile_grammars_are_the_same(up):
    draw, words, others = random.Random(5), vocabulary(), vocabulary()
    for seed in range(many(12)):
        request = hostile(draw)
        assert walk(partial(request.compile, words), seed) == walk(
            lambda request=request: Grammar(request.compile(others.bare).network, others), seed
        )


@pytest.mark.parametrize(
    "recipe",
    [
        GrammarRecipe("regex", "a(?=b)"),
        GrammarRecipe("regex", "(a"),
        GrammarRecipe("regex", 3),
        GrammarRecipe("choices", ()),
        GrammarRecipe("JSON schema", ('{"minimum": "x"}', SchemaOptions.of({}))),
        GrammarRecipe("ebnf", ("root ::= missing", "auto", None, None, None)),
        GrammarRecipe("regex", "(" * 5000 + ")" * 5000),
        GrammarRecipe(
            "JSON schema",
            (
                '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}',
                SchemaOptions.of({}),
            ),
        ),
        GrammarRecipe(
            "JSON schema", ('{"properties": {"p": {"allOf": [{"$ref": "#/properties/p"}]}}}', SchemaOptions.of({}))
        ),
        GrammarRecipe(
            "structural tag",
            (
                '{"type": "json_schema", "json_schema": {"items": {"type": "string"}, "uniqueItems": true}}',
                SchemaOptions.of({}),
            ),
        ),
        GrammarRecipe("ebnf", ("start: <missing>", "lark", None, None, None)),
    ],
    ids=str,
)
def test_errors_are_the_same(up, recipe):
    words = vocabulary()
    found = [walk(lambda make=make: make(recipe, words), 0) for make in (GrammarRecipe.compile, here)]
    assert found[0] == found[1] and issubclass(found[0][0][0], GrammarError)


def _errors() -> list[type[BaseException]]:
    """All classes of errors of the grammars floor, wherever they are defined."""
    found, work = [], [GrammarError]
    for module in pkgutil.walk_packages(grammars.__path__, f"{grammars.__name__}."):
        importlib.import_module(module.name)
    while work:
        found.append(work.pop())
        work += [kind for kind in found[-1].__subclasses__() if kind.__module__.startswith(grammars.__name__)]
    return found


def test_every_class_of_error_of_grammars_travels_as_it_is():
    for kind in _errors():
        made = kind("what", "#/a", "hint") if issubclass(kind, UnsupportedGrammarError) else kind("what")
        told = pickle.loads(pickle.dumps(SerializedError.of(made))).error()
        assert type(told) is kind and str(told) == str(made) and vars(told) == vars(made)


@pytest.mark.parametrize(
    "given",
    [
        "b'\\xff'.decode()",
        "[0][1]",
        "{}['a']",
        "int('x')",
        "json.loads('{')",
        "open('/nowhere/at/all')",
        "(lambda f: f(f))(lambda f: f(f))",
    ],
)
def test_errors_of_python_travel_as_they_are(given):
    with pytest.raises(Exception) as caught:
        eval(given)
    told = pickle.loads(pickle.dumps(SerializedError.of(caught.value))).error()
    assert type(told) is caught.type and str(told) == str(caught.value)


def test_an_error_of_a_class_that_cannot_be_sent_travels_as_the_class_that_it_is_made_of():
    class Local(UnsupportedGrammarError):
        pass

    made = Local("word", "#/a")
    made.held = lambda: None
    told = pickle.loads(pickle.dumps(SerializedError.of(made))).error()
    assert type(told) is UnsupportedGrammarError and told.where == "#/a" and str(told) == f"Local: {made}"


def test_what_cannot_be_sent_is_compiled_here(up):
    words = vocabulary()
    with pytest.raises(GrammarError, match="a regex must be a string, not <function"):
        GrammarRecipe("regex", lambda: "no text").compile(words)


ONLY_HERE = sys.modules["only_here"] = ModuleType(
    "only_here"
)  # it stands in no file, so that the other process has none
CLASSES = """
import enum
class Name(enum.StrEnum): ONE, TWO = 'one', 'two'
class Text(str): pass
class Other: pass
class Unreadable:
    def __reduce__(self): return int, ("no number",)
"""
exec(CLASSES, ONLY_HERE.__dict__)
Name, Text, Other, Unreadable = ONLY_HERE.Name, ONLY_HERE.Text, ONLY_HERE.Other, ONLY_HERE.Unreadable


def test_texts_of_classes_of_the_program_are_texts(up):
    words, running = vocabulary(), grammar_compile_policy.process()
    for make in (
        partial(compile_choices, [Name.ONE, Name.TWO]),
        partial(compile_regex, Text("one")),
        partial(compile_ebnf, Text('root ::= "one"')),
    ):
        found = make(words)
        assert isinstance(found.automaton.network, RemoteNetwork) and all(map(found.matcher().accept, b"one"))
    assert grammar_compile_policy.process() is running


def test_what_cannot_be_read_there_is_compiled_here_and_ends_nothing(up):
    words, running = vocabulary(), grammar_compile_policy.process()
    with pytest.raises(GrammarError, match="a choice must be a string, not b'no text'"):
        GrammarRecipe("choices", (Text("one"), b"no text")).compile(words)
    for source in (Other(), Unreadable()):
        with pytest.raises(grammar_compile_messages.RequestNotSent):
            running.ask(
                grammar_compile_messages.MakeNetwork(
                    1 << 40, "regex", source, frozenset(), grammar_compile_messages.NO_VOCABULARY, None
                )
            )
        with pytest.raises(GrammarError, match="a regex must be a string"):
            GrammarRecipe("regex", source).compile(words)
    assert grammar_compile_policy.process() is running and running.ended is None


def test_a_forked_child_compiles_by_itself_and_asks_nobody(use):
    words = vocabulary()
    matcher = LAZY.compile(words).matcher()
    assert all(map(matcher.accept, b'["ab'))
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if all(map(matcher.accept, b"ab" * 50)) else 1)
        finally:
            os._exit(2)
    assert all(map(matcher.accept, b"ab" * 50))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_disk_cache_is_the_other_ones_too(up, tmp_path, monkeypatch):
    recipe = GrammarRecipe("JSON schema", (json.dumps({"properties": {"kept": {"$ref": "#"}}}), SchemaOptions.of({})))
    monkeypatch.setattr("sgl.grammars.network.grammar_disk_cache.WORTHWHILE", 0.0)
    set_cache_dir(tmp_path / "kept")
    try:
        stored = walk(lambda: here(recipe, vocabulary()), 2)
        (file,) = (tmp_path / "kept").glob("*.network")
        os.utime(file, (1, 1))
        assert walk(lambda: recipe.compile(vocabulary()), 2) == stored
        assert file.stat().st_mtime > 1, "it was not read"
    finally:
        set_cache_dir(None)


def test_ordinary_grammars_come_whole_and_what_has_very_many_rules_bit_by_bit(up):
    assert UNBUILT not in GrammarRecipe(*KINDS[2]).compile(vocabulary()).automaton.network.entries
    network = LAZY.compile(vocabulary()).automaton.network
    assert UNBUILT in network.entries
    before = len(network.entries)
    network.build(network.entries.index(UNBUILT))
    assert before < len(network.entries) < before + 9


def child() -> int:
    running = grammar_compile_policy.process()
    assert running is not None
    return running.child.pid


@pytest.mark.parametrize(
    "recipe, begin, more",
    [(GrammarRecipe(*KINDS[2]), b'{"a": {"a', b'": {"a": {"a'), (LAZY, b'["ab', b"ab" * 50)],
    ids=["whole", "bit by bit"],
)
def test_a_text_goes_on_when_the_process_ends(use, recipe, begin, more):
    words = vocabulary()
    texts = [recipe.compile(words).matcher() for _ in range(2)]
    for byte in begin:
        assert all(text.accept(byte) for text in texts)
    before = child()
    os.kill(before, signal.SIGKILL)
    running = grammar_compile_policy._STATE.helper._running
    while running.ended is None:
        time.sleep(0.01)
    plain = here(recipe, words).matcher()
    for byte in begin + more:
        assert plain.accept(byte)
    for byte in more:
        assert all(text.accept(byte) for text in texts)
    assert all((text.mask() == plain.mask()).all() for text in texts)
    assert len({len(text.shortest_end()) for text in (*texts, plain)}) == 1
    assert child() != before and texts[0].automaton is texts[1].automaton is recipe.compile(words).automaton


def test_what_it_is_killed_over_fails_and_the_next_does_not(use):
    running = grammar_compile_policy.process()
    GrammarRecipe("regex", "a").compile(vocabulary())
    os.kill(running.child.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(running.ask, grammar_compile_messages.AskNetwork(1, "name", (0,)))
        while not running._waiting:
            time.sleep(0.001)
        os.kill(running.child.pid, signal.SIGKILL)
        with pytest.raises(
            grammar_compile_client.CompileProcessDied,
            match=r"was killed by SIGKILL .*while it worked on this one; ask again",
        ):
            asked.result(60)
    assert walk(lambda: GrammarRecipe("regex", "ab").compile(vocabulary()), 0)
    assert (
        grammar_compile_policy.process() is not running and grammar_compile_policy.describe() == "in a separate process"
    )


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_grammar_fails_with_the_second_process_that_dies_over_it(up, monkeypatch, deaths):
    told, left = sgl.grammars.compile._network_of, [grammar_compile_client.CompileProcessDied("it died")] * deaths

    def dying(*asked):
        if left:
            raise left.pop()
        return told(*asked)

    monkeypatch.setattr(sgl.grammars.compile, "_network_of", dying)
    if deaths == 1:
        assert walk(lambda: GrammarRecipe("regex", "abc").compile(vocabulary()), 0)
    else:
        with pytest.raises(GrammarLimitError, match="it died"):
            GrammarRecipe("regex", "abc").compile(vocabulary())
    assert not left


def test_what_takes_too_long_is_ended(use, monkeypatch):
    words, running = vocabulary(), grammar_compile_policy.process()
    GrammarRecipe("regex", "a").compile(words)
    os.kill(running.child.pid, signal.SIGSTOP)
    monkeypatch.setattr(grammar_compile_client, "LONGEST", 0.05)
    with pytest.raises(GrammarLimitError, match="takes more than 0 s to compile; simplify it"):
        LAZY.compile(words)
    monkeypatch.undo()
    assert walk(lambda: GrammarRecipe("regex", "ab").compile(words), 0)


def test_networks_that_are_dropped_are_forgotten_there(use):
    words = vocabulary()
    running = grammar_compile_policy.process()
    numbers = [GrammarRecipe("regex", f"a{i}b+").compile(words).automaton.network.number for i in range(3)]
    words.compiled.clear()
    while len(running.dropped) < 3:
        time.sleep(0.001)
    assert not isinstance(GrammarRecipe("regex", "x").compile(words), str)
    for number in numbers:
        with pytest.raises(grammar_compile_messages.NetworkLost):
            running.ask(grammar_compile_messages.AskNetwork(number, "name", (0,)))


def test_what_is_held_is_bounded(monkeypatch):
    words, told = vocabulary(), []
    server = grammar_compile_server.CompileServer(SimpleNamespace(send=lambda number, data: told.append(data)))
    make = grammar_compile_messages.MakeNetwork(
        1, "JSON schema", KINDS[2][1], frozenset(), grammar_compile_messages.NO_VOCABULARY, None
    )
    monkeypatch.setattr(grammar_compile_server, "MOST_BYTES", 1 << 60)
    server._serve(1, make)
    build = grammar_compile_messages.AskNetwork(1, "build", (0,))
    assert isinstance(server._answer(build), grammar_compile_messages.NetworkGrown)
    monkeypatch.setattr(grammar_compile_server, "MOST_BYTES", 1)
    server._serve(2, make._replace(network=2))
    for network in (1, 2):
        with pytest.raises(grammar_compile_messages.NetworkLost):
            server._answer(build._replace(network=network))
    assert words.bare.masks is False and len(told) == 2


def test_it_ends_where_forgetting_does_not_help_and_nobody_waits(monkeypatch):
    ended, left = [], threading.Event()
    server = grammar_compile_server.CompileServer(SimpleNamespace(send=lambda number, data: None))
    monkeypatch.setattr(grammar_compile_server, "MOST_BYTES", 1)
    monkeypatch.setattr(grammar_compile_server, "_end", lambda: ended.append(server._working) or left.set())
    server._working = 1
    server._make_room()
    assert not ended
    server._working = 0
    server._begin(
        1,
        grammar_compile_messages.MakeNetwork(
            1, "regex", "a", frozenset(), grammar_compile_messages.NO_VOCABULARY, None
        ),
    )
    assert left.wait(30) and ended == [0]


def test_a_rule_does_not_wait_for_however_many_grammars_that_are_made():
    read, named = threading.Event(), threading.Event()
    server = grammar_compile_server.CompileServer(SimpleNamespace(send=lambda number, data: None))
    server._answer = lambda request: named.set() if hasattr(request, "method") else read.wait(60)
    for number in range(grammar_compile_server.THREADS + 5):
        server._begin(
            number,
            grammar_compile_messages.MakeNetwork(
                number, "regex", "a", frozenset(), grammar_compile_messages.NO_VOCABULARY, None
            ),
        )
    server._begin(99, grammar_compile_messages.AskNetwork(1, "name", (0,)))
    try:
        assert named.wait(5)
    finally:
        read.set()


def test_a_grammar_for_which_there_is_no_memory_is_refused():
    told = []
    server = grammar_compile_server.CompileServer(SimpleNamespace(send=lambda number, data: told.append(data)))
    server._answer = lambda _: [0] * (1 << 60)
    server._serve(1, grammar_compile_messages.AskNetwork(1, "name", (0,)))
    answer = pickle.loads(told[0])
    assert isinstance(answer.error(), GrammarLimitError) and "takes more memory" in str(answer.error())


def test_it_ends_with_its_last_use(alone):
    first, second, other = (
        grammar_compile_policy.CompileProcessUse(True),
        grammar_compile_policy.CompileProcessUse(True),
        grammar_compile_policy.CompileProcessUse(False),
    )
    running = grammar_compile_policy.process()
    GrammarRecipe("regex", "ab").compile(vocabulary())
    first.leave()
    assert grammar_compile_policy.process() is running and running.ended is None
    second.leave()  # the other one has compiled next to nothing
    assert (
        running.child.code == 0
        and grammar_compile_policy.process() is None
        and grammar_compile_policy.describe() == "in this process"
    )
    other.leave()


def test_it_is_started_when_it_is_worthwhile(alone, monkeypatch):
    use = grammar_compile_policy.CompileProcessUse(False)
    try:
        words = vocabulary()
        assert (
            not isinstance(GrammarRecipe("regex", "a1").compile(words).automaton.network, RemoteNetwork)
            and grammar_compile_policy._STATE.helper is None
        )
        monkeypatch.setattr(grammar_compile_policy, "WORTHWHILE", 0.0)
        GrammarRecipe("regex", "a2").compile(words)
        assert grammar_compile_policy._STATE.helper.running().ready.wait(30)
        assert isinstance(GrammarRecipe("regex", "a3").compile(words).automaton.network, RemoteNetwork)
    finally:
        use.leave()


def test_without_a_python_that_starts_it_grammars_are_compiled_here(alone, monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    use = grammar_compile_policy.CompileProcessUse(True)
    try:
        words = vocabulary()
        for i in range(9):
            assert walk(lambda i=i: GrammarRecipe("regex", f"a{i}").compile(words), 0)
            time.sleep(0.05)
        assert "exit code 1" in grammar_compile_policy.describe() and "exit code 1" in caplog.text
    finally:
        use.leave()


LEFT_ALONE = """
import os, signal
from sgl.grammars import Vocabulary, compile_regex
from sgl.grammars.compile_client import grammar_compile_policy
use = grammar_compile_policy.CompileProcessUse(True)
compile_regex("a", Vocabulary.from_bytes([b"a", b"<eos>"], [1]))
if os.fork() == 0:  # it holds the other end of the channel open, and has none itself
    assert grammar_compile_policy.process() is None
    assert compile_regex("aa", Vocabulary.from_bytes([b"a", b"<eos>"], [1]))
    signal.pause()
print(grammar_compile_policy.process().child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_ends_with_its_owner():
    owner = subprocess.Popen([sys.executable, "-c", LEFT_ALONE], stdout=subprocess.PIPE, process_group=0)
    number = int(owner.stdout.readline())
    try:
        deadline = time.monotonic() + 30
        while (
            time.monotonic() < deadline
            and Path(f"/proc/{number}/stat").exists()
            and Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        ):
            time.sleep(0.05)
        assert time.monotonic() < deadline
    finally:
        os.killpg(owner.pid, signal.SIGKILL)
        owner.wait()
        owner.stdout.close()

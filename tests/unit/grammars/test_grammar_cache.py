"""The caches: once for all who ask, bounded, without memory of failures; and the one on disk."""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from grammar_support import accepts, allowed, byte_vocabulary, walk

from sgl.common.lru_cache import LruCache
from sgl.grammars import (
    GrammarLimitError,
    InvalidGrammarError,
    compile_choices,
    compile_ebnf,
    compile_json_schema,
    compile_regex,
    compile_structural,
    reasoning,
    set_cache_dir,
)
from sgl.grammars.network import grammar_disk_cache
from sgl.grammars.network.grammar_disk_cache import GrammarDiskCache
from sgl.grammars.network.transition_network import TransitionNetwork
from sgl.grammars.regex import parse_regex

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]+$"},
        "child": {"$ref": "#"},
        "n": {"type": "integer"},
    },
    "required": ["name"],
}


class Sized:
    def __init__(self, memory):
        self.memory = memory


def threads(count, task):
    found = [None] * count

    def run(i):
        try:
            found[i] = task(i)
        except Exception as error:
            found[i] = error

    running = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return found


def test_the_least_recently_used_is_forgotten():
    cache = LruCache(2)
    assert [cache.get(key, lambda key=key: key.upper()) for key in "abacb"] == list("ABACB")
    made = []
    for key in "bca":
        cache.get(key, lambda key=key: made.append(key))
    assert made == ["a"] and len(cache) == 2


def test_entries_are_weighed_when_one_more_comes_in():
    cache = LruCache(10, most_bytes=100)
    first = cache.get("a", lambda: Sized(10))
    cache.get("b", lambda: Sized(30))
    assert len(cache) == 2
    first.memory = 90
    cache.get("c", lambda: Sized(20))
    assert len(cache) == 2 and cache.get("b", lambda: None) is not None
    cache.get("d", lambda: Sized(1000))
    assert len(cache) == 1


def test_all_who_ask_at_once_get_what_one_makes():
    cache, made, barrier = LruCache(4), [], threading.Barrier(6)

    def make():
        made.append(1)
        time.sleep(0.05)
        return object()

    def ask(_):
        barrier.wait()
        return cache.get("key", make)

    found = threads(6, ask)
    assert len(made) == 1 and len(set(map(id, found))) == 1


def test_a_failure_goes_to_all_who_wait_and_is_not_remembered():
    cache, made, barrier = LruCache(4), [], threading.Barrier(4)

    def make():
        made.append(1)
        time.sleep(0.05)
        raise InvalidGrammarError("no")

    def ask(_):
        barrier.wait()
        return cache.get("key", make)

    found = threads(4, ask)
    assert len(made) == 1 and all(isinstance(error, InvalidGrammarError) for error in found)
    assert cache.get("key", lambda: 3) == 3


def test_an_interrupted_maker_leaves_the_work_to_the_next():
    cache, started, go = LruCache(4), threading.Event(), threading.Event()

    def interrupted():
        started.set()
        go.wait(5)
        raise KeyboardInterrupt

    def first():
        with pytest.raises(KeyboardInterrupt):
            cache.get("key", interrupted)

    one = threading.Thread(target=first)
    one.start()
    started.wait(5)
    found = []
    two = threading.Thread(target=lambda: found.append(cache.get("key", lambda: "made")))
    two.start()
    go.set()
    one.join(5)
    two.join(5)
    assert found == ["made"]


def test_equal_sources_are_one_grammar():
    vocabulary = byte_vocabulary()
    schema = '{"type": "integer"}'
    assert compile_json_schema(schema, vocabulary) is compile_json_schema({"type": "integer"}, vocabulary)
    assert compile_json_schema(schema, vocabulary) is not compile_json_schema(schema, vocabulary, whitespace="compact")
    assert compile_regex("a", vocabulary) is not compile_choices(["a"], vocabulary)
    assert compile_choices(["a", "b"], vocabulary) is compile_choices(iter("ab"), vocabulary)
    assert compile_regex("a", vocabulary) is not compile_regex("a", byte_vocabulary())
    spec = {"type": "regex", "pattern": "a"}
    assert compile_structural(spec, vocabulary) is compile_structural('{"type":"regex","pattern":"a"}', vocabulary)


def test_a_failed_compile_is_tried_again():
    vocabulary = byte_vocabulary()
    for _ in range(2):
        with pytest.raises(InvalidGrammarError):
            compile_regex("a(", vocabulary)
    assert len(vocabulary.compiled) == 0


def test_what_is_no_key_is_refused_by_name():
    vocabulary = byte_vocabulary()
    for make in (
        lambda: compile_regex(["a"], vocabulary),
        lambda: compile_choices([["a"]], vocabulary),
        lambda: compile_choices(5, vocabulary),
        lambda: compile_ebnf({}, vocabulary),
        lambda: compile_json_schema([], vocabulary),
    ):
        with pytest.raises(InvalidGrammarError, match=r"\['a'\]|5|\{\}|\[\]"):
            make()


def test_sources_that_are_nested_too_deeply_are_refused():
    schema = {}
    for _ in range(5000):
        schema = {"items": schema}
    for source in (schema, '{"items":' * 100_000):
        with pytest.raises(GrammarLimitError, match="JSON schema is nested too deeply"):
            compile_json_schema(source, byte_vocabulary())


# on disk


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache that keeps even what is quick to compile."""
    monkeypatch.setattr("sgl.grammars.compile.WORTHWHILE", 0.0)
    set_cache_dir(tmp_path / "cache")
    yield tmp_path / "cache"
    set_cache_dir(None)


COMPILED = {
    "json": lambda v: compile_json_schema(SCHEMA, v),
    "regex": lambda v: compile_regex("([ab]{2,40}é|x)*", v),
    "choices": lambda v: compile_choices(["one", "two"], v),
    "structural": lambda v: compile_structural(reasoning({"type": "json_schema", "json_schema": SCHEMA}), v),
}


@pytest.mark.parametrize("kind", COMPILED)
def test_a_stored_grammar_is_the_same_grammar(folder, kind):
    set_cache_dir(None)
    fresh = COMPILED[kind](byte_vocabulary([b"name", b'{"']))
    set_cache_dir(folder)
    COMPILED[kind](byte_vocabulary([b"name", b'{"']))
    assert len(list(folder.iterdir())) == 1
    stored = COMPILED[kind](byte_vocabulary([b"name", b'{"']))
    rng = random.Random(kind)
    for _ in range(10):
        left, right = fresh.matcher(), stored.matcher()
        for _ in range(40):
            choices = sorted(allowed(left.mask()))
            assert choices == sorted(allowed(right.mask())) and left.forced() == right.forced()
            assert left.shortest_end() == right.shortest_end()
            token = rng.choice(choices)
            assert left.accept(token) and right.accept(token)
            if token in fresh.vocabulary.eos_ids:
                break
    assert walk(stored.matcher(), rng)


def test_what_is_stored_is_not_compiled_again(folder, monkeypatch):
    COMPILED["json"](byte_vocabulary())
    monkeypatch.setattr("sgl.grammars.compile.schema_expr", None)
    assert accepts(COMPILED["json"](byte_vocabulary()), '{"name": "Ada"}')
    with pytest.raises(TypeError):
        compile_json_schema(SCHEMA, byte_vocabulary(), whitespace="compact")


def test_ordinary_grammars_are_not_worth_a_file(tmp_path):
    set_cache_dir(tmp_path / "cache")
    try:
        COMPILED["regex"](byte_vocabulary())
        COMPILED["choices"](byte_vocabulary())
    finally:
        set_cache_dir(None)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "foreign", "renamed"])
def test_a_damaged_file_is_ignored_and_written_anew(folder, harm, caplog):
    COMPILED["json"](byte_vocabulary())
    (file,) = folder.iterdir()
    good = file.read_bytes()
    other = folder / "other.network"
    COMPILED["regex"](byte_vocabulary())
    next(f for f in folder.iterdir() if f != file).rename(other)
    harmed = {
        "cut": good[:-7],
        "flip": good[:200] + bytes([good[200] ^ 1]) + good[201:],
        "empty": b"",
        "foreign": b"something else " * 50,
        "renamed": other.read_bytes(),
    }
    file.write_bytes(harmed[harm])
    assert accepts(COMPILED["json"](byte_vocabulary()), '{"name": "Ada"}')
    assert file.read_bytes() == good
    assert "damaged" in caplog.text


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files here")
def test_a_file_that_others_may_write_is_not_read(folder, monkeypatch):
    COMPILED["regex"](byte_vocabulary())
    folder.chmod(0o777)
    read = []
    monkeypatch.setattr(grammar_disk_cache, "unpack", lambda *args: read.append(args))
    COMPILED["regex"](byte_vocabulary())
    assert not read
    folder.chmod(0o700)
    COMPILED["regex"](byte_vocabulary())
    assert len(read) == 1


def test_the_folder_is_bounded(tmp_path):
    network = TransitionNetwork(parse_regex("a{5}"))
    cache = GrammarDiskCache(tmp_path, most_bytes=2000)
    for i in range(20):
        assert cache.store("regex", str(i), network)
        assert sum(f.stat().st_size for f in tmp_path.iterdir()) <= 2000
    assert cache.load("regex", "19") is not None and cache.load("regex", "0") is None


def test_a_folder_that_cannot_be_written_costs_nothing_but_a_warning(folder, caplog):
    folder.write_text("a file")
    assert accepts(COMPILED["regex"](byte_vocabulary()), "x")
    assert "cannot be written" in caplog.text


def test_every_file_of_the_grammars_counts():
    """A network that an older reader made is not taken for one of this reader's."""
    read = []
    with pytest.MonkeyPatch.context() as patch:
        bytes_of = Path.read_bytes
        patch.setattr(Path, "read_bytes", lambda file: read.append(file.name) or bytes_of(file))
        assert grammar_disk_cache._package.__wrapped__() == grammar_disk_cache._package()
    assert {"lark_syntax.py", "schema_builder.py", "regex_parser.py", "transition_network_lowering.py"} <= set(read)


def test_the_environment_turns_it_on(tmp_path):
    code = (
        "from sgl import grammars; import sgl.grammars.compile as c; c.WORTHWHILE = 0.0\n"
        "v = grammars.Vocabulary.from_bytes([b'a', b''], [1]); grammars.compile_regex('a+', v)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"SGL_GRAMMAR_CACHE": str(tmp_path)})
    assert len(list(tmp_path.glob("*.network"))) == 1

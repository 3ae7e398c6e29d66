"""Options, feeds, gates, tails and the front door."""

from __future__ import annotations

import asyncio
import pydoc
import re
import subprocess
import sys
import threading
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sgl
from sgl.lang.backends.embedded.untokenized_tail import WINDOW, UntokenizedTail, common_prefix
from sgl.lang.backends.pending_calls import PendingCalls, gather_results
from sgl.lang.concurrency.replay_feed import ReplayFeed
from sgl.lang.errors import BadValueError
from sgl.lang.sampling.options import DEFAULTS, derive_seed, make_options


def test_import_is_light():
    code = (
        "import sys, sgl; sgl.gen, sgl.function, sgl.user; print([m for m in ('torch', 'transformers') if m in "
        "sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_every_public_name_resolves():
    for name in sgl.__all__:
        if name != "Engine":
            assert getattr(sgl, name) is not None
    assert set(sgl.__all__) <= set(dir(sgl))


@pytest.mark.parametrize("name", ["gen_int", "gen_string", "Crusoe", "VertexAI", "Delayed"])
def test_older_names_are_importable_and_not_shown(name):
    assert getattr(sgl, name).__name__ == name
    assert name not in sgl.__all__ and name not in dir(sgl)
    assert not re.search(rf"^ *(class )?{name}\b", sgl_help(), re.MULTILINE)


def sgl_help() -> str:
    return pydoc.render_doc(sgl, renderer=pydoc.plaintext)


def test_the_older_option_of_function_is_taken_and_not_shown():
    assert sgl.function(api_num_spec_tokens=8)(lambda s: None).num_api_spec_tokens == 8
    assert "api_num_spec_tokens" not in pydoc.render_doc(sgl.function, renderer=pydoc.plaintext)
    with pytest.raises(TypeError, match=r"function has no option 'num_api_tokens'.*num_api_spec_tokens"):
        sgl.function(num_api_tokens=8)


def test_options_are_normalised():
    made = make_options(stop="x", stop_token_ids=[1, 2], dtype=int, json_schema=None, logit_bias={"3": 1})
    assert (made.stop, made.stop_token_ids, made.dtype, made.logit_bias) == (("x",), (1, 2), "int", {3: 1.0})
    assert made.stops == ("x", " ", "\n") and re.fullmatch(made.pattern, "-12 ")
    assert make_options(temperature=0).over(DEFAULTS).temperature == 0.0
    assert make_options().over(DEFAULTS) == DEFAULTS


def test_schemas_come_in_three_forms():
    pydantic = pytest.importorskip("pydantic")

    class Point(pydantic.BaseModel):
        x: int

    text = make_options(json_schema=Point).json_schema
    assert '"x"' in text and make_options(json_schema=text).json_schema == text
    assert make_options(json_schema={"type": "null"}).json_schema == '{"type": "null"}'
    with pytest.raises(BadValueError, match="json_schema is 3"):
        make_options(json_schema=3)


@pytest.mark.parametrize(
    "wrong",
    [{"dtype": "complex"}, {"n": 0}, {"temperature": "hot"}, {"stop": [1]}, {"seed": 1.5}, {"max_new_tokens": True}],
)
def test_bad_values(wrong):
    with pytest.raises(BadValueError):
        make_options(**wrong)


def test_patterns_are_compiled_when_they_are_given():
    with pytest.raises(BadValueError, match=r"gen\('a'\): regex '\(hello' is not a regular expression: missing \)"):
        sgl.gen("a", regex="(hello")
    with pytest.raises(BadValueError, match=r"stop_regex '\[' is not"):
        sgl.gen("a", stop_regex=["x", "["])
    with pytest.raises(BadValueError, match="too large"):
        sgl.gen("a", regex="a{99999999999999999999}")
    with pytest.raises(BadValueError, match="regex is 5; give a pattern"):
        sgl.gen("a", regex=5)
    with pytest.warns(UserWarning, match="wins over"):
        assert sgl.gen("a", dtype=bool, regex="x").sampling_params.pattern == "(True|False)"
    with pytest.raises(BadValueError, match="both"):
        sgl.gen("a", regex="x", json_schema={})


def test_typed_gens_have_their_own_order():
    node = sgl.gen_int("a", 5, 2, "x", None, None, 0.5)
    assert (node.sampling_params.n, node.sampling_params.temperature, node.sampling_params.dtype) == (2, 0.5, "int")
    assert sgl.gen_string("a", top_p=0.5).sampling_params.dtype == "str"
    with pytest.raises(TypeError, match="did you mean 'top_p'"):
        sgl.gen_string("a", topp=1)


def test_seeds_differ_by_path():
    seeds = {derive_seed(1), derive_seed(1, 0), derive_seed(1, 1), derive_seed(1, 0, 1), derive_seed(2, 1)}
    assert len(seeds) == 5 and derive_seed(1, 2) == derive_seed(1, 2)


def test_feeds_replay_for_late_and_early_readers():
    feed: ReplayFeed[int] = ReplayFeed()
    got: list[list[int]] = [[], []]
    readers = [threading.Thread(target=lambda out=out: out.extend(feed)) for out in got]
    readers[0].start()
    for item in range(100):
        feed.put(item)
    readers[1].start()
    feed.close()
    for reader in readers:
        reader.join(5)
    assert got[0] == got[1] == list(feed) == list(range(100))


def test_feeds_raise_at_their_end_and_serve_event_loops():
    feed: ReplayFeed[int] = ReplayFeed()

    async def read():
        seen = []
        threading.Timer(0.02, feed.put, [1]).start()
        threading.Timer(0.04, feed.close, [ValueError("end")]).start()
        with pytest.raises(ValueError, match="end"):
            async for item in feed:
                seen.append(item)
        return seen

    assert asyncio.run(read()) == [1]
    with pytest.raises(ValueError, match="end"):
        list(feed)


def test_gates_keep_order_and_fail_what_they_hold():
    gate, done, failed = PendingCalls(), [], []

    def do(number):
        gate.run(lambda: done.append(number), lambda error: failed.append((number, str(error))))

    do(1)
    gate.shut()
    do(2)
    do(3)
    assert done == [1]
    gate.open(lambda: done.append("first"))
    assert done == [1, "first", 2, 3]
    gate.shut()
    do(4)
    gate.break_with(ValueError("broken"))
    do(5)
    assert done == [1, "first", 2, 3] and failed == [(4, "broken"), (5, "broken")]


def test_gather():
    futures: list[Future[int]] = [Future() for _ in range(3)]
    together = gather_results(futures)
    for value, future in enumerate(futures):
        future.set_result(value)
    assert together.result(1) == [0, 1, 2] and gather_results([]).result(1) == []
    futures = [Future(), Future()]
    together = gather_results(futures)
    futures[0].set_exception(ValueError("x"))
    futures[1].set_result(1)
    with pytest.raises(ValueError, match="x"):
        together.result(1)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault of the inputs
@given(st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=4))
def test_common_prefix(rows):
    count = common_prefix([np.array(row, np.int32) for row in rows])
    assert all(row[:count] == rows[0][:count] for row in rows)
    assert any(len(row) == count for row in rows) or len({row[count] for row in rows}) > 1


class Words:
    """A tokenizer whose words are tokens, with two words that melt into one."""

    special_ids = frozenset({0})
    bos_id = None
    eos_ids = (0,)

    def __init__(self) -> None:
        self.token_bytes: list[bytes] = [b"<s>"]
        self._ids: dict[str, int] = {"<s>": 0}

    def encode(self, text, special_prefix=False, parse_special=True):
        words = re.findall(r"<s>| ?new york| ?\w+|\W", text)
        for word in words:
            if word not in self._ids:
                self._ids[word] = len(self.token_bytes)
                self.token_bytes.append(word.encode())
        return np.array([self._ids[word] for word in words], np.int32)


@given(
    st.lists(st.sampled_from(["a", " b", " new", " york", "<s>", ", ", "."]), min_size=1, max_size=300),
    st.text("ab york", max_size=9),
)
def test_short_tails_continue_as_long_ones(parts, more):
    tokenizer = Words()
    text = "".join(parts)
    whole = UntokenizedTail().extended(text, tokenizer)
    short = whole.shortened(tokenizer)
    assert len(whole.tokens) <= 2 * WINDOW or len(short.tokens) <= len(whole.tokens)
    cut = len(whole.tokens) - len(short.tokens)
    expected = tokenizer.encode(text + more)
    assert np.array_equal(np.concatenate([whole.tokens[:cut], short.extended(more, tokenizer).tokens]), expected)


def test_a_tail_is_cut_at_a_special_token_near_its_end():
    tokenizer = Words()
    tail = UntokenizedTail().extended("a." * 500 + "<s>new", tokenizer).shortened(tokenizer)
    assert tail.text == "<s>new" and len(tail.tokens) == 2, "each choice of a select is tokenised with the tail"


def test_a_special_token_that_may_become_a_longer_one_is_no_place_to_cut():
    tokenizer = Words()
    tokenizer.special_ids = frozenset({0, 1})
    tokenizer.token_bytes.append(b"<<s>>")
    tokenizer._ids["<<s>>"] = 1
    tail = UntokenizedTail().extended("a." * 500 + "<s>new", tokenizer).shortened(tokenizer)
    assert tail.text != "<s>new"

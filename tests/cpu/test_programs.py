"""Whole programs on the embedded runtime, with a tiny random model; each result against a slow, obvious oracle."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import random
import re
import threading
import time
from typing import Any

import numpy as np
import pytest
from alone import alone
from checkpoints import write_checkpoint, write_tokenizer

import sgl
from sgl.grammars import GrammarError
from sgl.lang.backends import default_backend
from sgl.lang.backends.default_backend import as_backend
from sgl.lang.backends.embedded.embedded_backend import EmbeddedBackend, model_name_of
from sgl.lang.backends.embedded.untokenized_tail import common_prefix
from sgl.lang.chat import get_chat_template
from sgl.lang.errors import BadValueError
from sgl.runtime.errors import EngineClosed
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs") / "tiny"
    tokens = Tokenizer.load(write_tokenizer(folder)).vocab_size
    return write_checkpoint(folder, vocab_size=tokens)


@pytest.fixture(scope="module")
def engine(path):
    with sgl.Engine(str(path), dtype="float32", threads=1, poison_freed=True) as made:
        yield made


@pytest.fixture(autouse=True)
def clean(engine):
    sgl.set_default_backend(engine)
    yield
    sgl.set_default_backend(None)
    gc.collect()
    engine.check()


def tokens_of(state) -> list[int]:
    return state.stream_executor.stream._sequence.tokens().tolist()


def encode(engine, text, start=True) -> list[int]:
    return engine.tokenizer.encode(text, special_prefix=start).tolist()


def continue_tokens(engine, tokens, count) -> list[int]:
    """Greedy continuation of a row of tokens, on a sequence of its own."""
    sequence = engine.open()
    sequence.extend(tokens)
    return sequence.generate(SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)).result(30).token_ids


def logprobs(engine, tokens, start) -> list[float]:
    """Of tokens[start:]; the first token of a text stands behind BOS."""
    sequence = engine.open()
    if start == 0:
        tokens, start = [engine.tokenizer.bos_id, *tokens], 1
    sequence.extend(tokens)
    return [value for value, _ in sequence.logprobs(start).result(30)[0]]


GREEDY = {"temperature": 0, "ignore_eos": True}


# --- generation


def test_a_chain_of_literals_and_gens(engine):
    @sgl.function
    def program(s):
        s += "Once upon" + " a time "
        s += sgl.gen("a", max_tokens=5)
        s += " and " + "then " + sgl.gen("b", max_tokens=4) + " end"
        s += "."

    state = program.run(**GREEDY)
    first = encode(engine, "Once upon a time ")
    first += continue_tokens(engine, first, 5)
    second = first + encode(engine, " and then ", start=False)
    second += continue_tokens(engine, second, 4)
    assert state.text() == f"Once upon a time {state['a']} and then {state['b']} end."
    info = state.get_meta_info("b")
    assert info["prompt_tokens"] == len(second) - 4 and info["completion_tokens"] == 4
    assert info["finish_reason"] == {"type": "length", "length": 4} and info["truncated"] is False
    assert info["cached_tokens"] >= len(first) - 1 and info["forced_tokens"] == 0 and info["e2e_latency"] > 0
    assert set(info) >= {"id", "finish_reason"}


def test_the_sequence_holds_the_tokens_of_the_text(engine):
    @sgl.function
    def program(s):
        s += "The quick "
        forks = s.fork(2)
        forks += ["brown fox", "brow"]
        forks += sgl.gen("x", max_tokens=1)
        s["tokens"] = [tokens_of(fork)[:-1] for fork in forks]

    state = program.run(**GREEDY)
    assert state["tokens"] == [encode(engine, "The quick brown fox"), encode(engine, "The quick brow")]


def test_a_program_may_begin_with_a_gen():
    @sgl.function
    def program(s):
        s += sgl.gen("a", max_tokens=3) + sgl.gen("b", max_tokens=3)

    state = program.run(**GREEDY)
    assert state.text() == state["a"] + state["b"] and state.error() is None


def test_stops_are_cut_and_may_be_kept(engine):
    @sgl.function
    def program(s, **options):
        s += "Hello " + sgl.gen("a", max_tokens=30, **options)

    whole = program.run(**GREEDY)["a"]
    stop = whole[5:7]
    assert program.run(**GREEDY, stop=stop)["a"] == whole[: whole.index(stop)]
    kept = program.run(**GREEDY, stop=stop, keep_stop=True)["a"]
    assert kept == whole[: whole.index(stop) + len(stop)]
    state = program.run(**GREEDY, stop=[stop])
    assert state.get_meta_info("a")["finish_reason"] == {"type": "stop", "matched": stop}


@pytest.mark.parametrize("dtype", [int, float, bool, str])
def test_dtypes(dtype):
    @sgl.function
    def program(s):
        s += "Value: " + sgl.gen("v", max_tokens=60, dtype=dtype, close_at_limit=True) + " end"

    state = program.run(seed=1)
    value = state["v"]
    assert isinstance(value, str) and state.text() == f"Value: {value} end"
    reading = {
        int: int,
        float: float,
        bool: {"True": True, "False": False}.__getitem__,
        str: lambda v: re.fullmatch('"[^"]*"', v)[0],
    }
    reading[dtype](value)


def test_regex_and_truncation():
    @sgl.function
    def program(s, **options):
        s += "Date: " + sgl.gen("d", regex=r"[0-9]{4}-[0-9]{2}-[0-9]{2}", **options)

    state = program.run(seed=1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", state["d"]) and not state.get_meta_info("d")["truncated"]

    @sgl.function
    def cut(s, error):
        s += "Date: " + sgl.gen("d", regex="[0-9]{40}", max_tokens=3, error_on_truncation=error)

    assert cut.run(False).get_meta_info("d")["truncated"] is True
    with pytest.raises(sgl.ProgramError, match="TruncatedError"):
        cut.run(True)["d"]


def test_json_schemas():
    pydantic = pytest.importorskip("pydantic")

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        age: int = pydantic.Field(ge=0, le=150)

    @sgl.function
    def program(s, schema):
        s += "Person: " + sgl.gen("p", max_tokens=120, json_schema=schema, close_at_limit=True) + "!"

    schema = Person.model_json_schema()
    texts = {program.run(form, seed=4)["p"] for form in (Person, schema, json.dumps(schema))}
    assert len(texts) == 1
    Person.model_validate_json(texts.pop())


def test_schema_errors_name_the_place_and_fail_only_their_program():
    @sgl.function
    def program(s, schema):
        s += "x" + sgl.gen("p", max_tokens=9, json_schema=schema)

    bad = {"type": "object", "properties": {"a": {"type": "strin"}}}
    with pytest.raises(sgl.ProgramError, match=r"strin.*#/properties/a") as caught:
        program.run(bad)
    assert isinstance(caught.value.__cause__, GrammarError) and caught.value.where.file == __file__
    states = program.run_batch([(bad,), ({"type": "null"},)])
    assert states[0].error() is not None and states[1]["p"] == "null"


def test_samples_and_seeds():
    @sgl.function
    def program(s):
        s += "Once " + sgl.gen("a", max_tokens=8, n=3) + " end"

    first, again, other = (program.run(seed=seed) for seed in (1, 1, 2))
    assert first["a"] == again["a"] != other["a"] and len(set(first["a"])) == 3
    assert first.text() == f"Once {first['a'][0]} end"
    assert len(first.get_meta_info("a")) == 3


def test_zero_tokens_give_one_row_of_top_logprobs():
    @sgl.function
    def program(s):
        s += "Hello" + sgl.gen("a", max_tokens=0, return_logprob=True, top_logprobs_num=4)

    state = program.run(temperature=0)
    info = state.get_meta_info("a")
    assert state["a"] == "" and len(info["output_top_logprobs"][0]) == 4


def test_logprobs_of_output_and_input(engine):
    @sgl.function
    def program(s, start):
        s += "Hello you" + sgl.gen("a", max_tokens=4, return_logprob=True, logprob_start_len=start, top_logprobs_num=2)

    info = program.run(0, **GREEDY).get_meta_info("a")
    prompt = encode(engine, "Hello you")
    output = [token for _, token, _ in info["output_token_logprobs"]]
    expected = logprobs(engine, prompt + output, 1)
    inputs = info["input_token_logprobs"]
    assert inputs[0][:2] == [None, prompt[0]] and [token for _, token, _ in inputs] == prompt
    assert [value for value, *_ in inputs[1:]] == pytest.approx(expected[: len(prompt) - 1], abs=1e-4)
    assert [value for value, *_ in info["output_token_logprobs"]] == pytest.approx(
        expected[len(prompt) - 1 :], abs=1e-4
    )
    assert len(info["input_top_logprobs"]) == len(prompt) and len(info["output_top_logprobs"]) == 4
    later = program.run(3, **GREEDY).get_meta_info("a")["input_token_logprobs"]
    assert [token for _, token, _ in later] == prompt[3:]


def test_a_bad_option_fails_only_its_program():
    @sgl.function
    def program(s, top_p):
        s += "x" + sgl.gen("a", max_tokens=2, top_p=top_p)

    states = program.run_batch([(0.5,), (7.0,), (0.5,)])
    assert [state.error() is None for state in states] == [True, False, True]
    assert "top_p" in str(states[1].error())


# --- select


def scores_by_hand(engine, prompt: str, choices: list[str]):
    rows = [encode(engine, prompt + choice) for choice in choices]
    base = encode(engine, prompt)
    start = 0
    while all(len(row) > start and row[start] == rows[0][start] for row in [*rows, base]):
        start += 1
    return [logprobs(engine, row, start) for row in rows], [row[start:] for row in rows]


@pytest.mark.parametrize("prompt", ["The answer is ", "The answer is", "wow!!", "1 + 1 = 2", "brow"])
def test_select_scores_from_the_common_prefix(engine, prompt):
    choices = ["brown fox", "n", " lazy dog", "quick", "!!"]

    @sgl.function
    def program(s):
        s += prompt + sgl.select("c", choices) + "."

    state = program.run()
    rows, _ = scores_by_hand(engine, prompt, choices)
    means = [sum(row) / len(row) for row in rows]
    info = state.get_meta_info("c")
    assert info["normalized_prompt_logprobs"] == pytest.approx(means, abs=1e-4)
    assert state["c"] == choices[int(np.argmax(means))] and state.text() == prompt + state["c"] + "."
    weights = [math.exp(sum(row)) for row in rows]
    assert info["choice_probs"] == pytest.approx([w / sum(weights) for w in weights], abs=1e-4)
    assert len(info["input_token_logprobs"]) == len(choices)


def test_the_other_methods(engine):
    prompt, choices = "Pick one: ", ["the lazy dog", "jumps", "over"]

    @sgl.function
    def program(s, method):
        s += prompt + sgl.select("c", choices, choices_method=method)

    rows, tokens = scores_by_hand(engine, prompt, choices)
    width = max(map(len, rows))
    matrix = [row + [sum(row) / len(row)] * (width - len(row)) for row in rows]
    greedy = program.run(sgl.greedy_token_selection)
    assert np.allclose(greedy.get_meta_info("c")["greedy_logprob_matrix"], matrix, atol=1e-4)
    assert greedy["c"] == choices[int(np.argmax([row[0] for row in matrix]))]
    priors = [[0.0, *logprobs(engine, row, 1)] if len(row) > 1 else [0.0] for row in tokens]
    expected = [np.mean(np.array(row) - np.array(prior)) for row, prior in zip(rows, priors, strict=True)]
    state = program.run(sgl.unconditional_likelihood_normalized)
    info = state.get_meta_info("c")
    assert info["normalized_unconditional_prompt_logprobs"] == pytest.approx(expected, abs=1e-3)
    assert state["c"] == choices[int(np.argmax(expected))]
    assert info["unconditional_token_logprobs"][0][0][0] is None


@pytest.mark.whole
@alone
def test_selects_chain_without_a_thread_that_waits(engine):
    @sgl.function
    def program(s, i):
        s += f"Item {i}: "
        for k in range(3):
            s += sgl.select(f"c{k}", ["red", "green", "blue"]) + " and "
        s += sgl.gen("last", max_tokens=3)
        forks = s.fork(2)
        forks += sgl.gen("branch", max_tokens=2)
        s += " done"
        return forks

    before = threading.active_count()
    states = [program.run(i, **GREEDY) for i in range(30)]
    assert threading.active_count() <= before + 3
    for i, state in enumerate(states):
        middle = " and ".join(state[f"c{k}"] for k in range(3))
        assert state.text() == f"Item {i}: {middle} and {state['last']} done"
        assert state.ret_value[0]["branch"] == state.ret_value[1]["branch"]


def test_what_follows_a_select_is_tokenised_with_it(engine):
    @sgl.function
    def program(s):
        s += "The quick "
        s += sgl.select("c", ["bro", "laz"])
        forks = s.fork(1)
        forks += "wn fox"
        forks += sgl.gen("x", max_tokens=1)
        s["tokens"] = tokens_of(forks[0])[:-1] if forks[0]["x"] is not None else []

    state = program.run(**GREEDY)
    assert state["tokens"] == encode(engine, f"The quick {state['c']}wn fox")


def test_select_at_the_start_and_empty_choices():
    @sgl.function
    def program(s, choices):
        s += sgl.select("c", choices) + "!"

    assert program.run(["a", "b"]).text() in ("a!", "b!")
    assert program.run(["same", "same"])["c"] == "same"
    with pytest.raises(BadValueError, match="choice 1 is an empty text, which has no tokens"):
        program.run(["b", ""])


def test_a_failing_method_fails_what_follows():
    class Broken(type(sgl.token_length_normalized)):
        def __call__(self, **_):
            raise ZeroDivisionError("broken method")

    @sgl.function
    def program(s):
        s += "x" + sgl.select("c", ["a", "b"], choices_method=Broken()) + "y" + sgl.gen("g", max_tokens=2)
        forks = s.fork(2)
        forks += "z" + sgl.gen("h", max_tokens=2)
        return forks

    state = program.run()
    assert state.text() == "x"
    for name in ("c", "g"):
        with pytest.raises(sgl.ProgramError, match="broken method"):
            state[name]
    with pytest.raises(sgl.ProgramError):
        state.ret_value[0]["h"]


# --- forks


def test_forks_are_what_separate_runs_would_be(engine):
    @sgl.function
    def forked(s):
        s += "The fox " + sgl.gen("a", max_tokens=3)
        forks = s.fork(3)
        forks += lambda i: f" way {i}: " + sgl.gen("way", max_tokens=4)
        forks.join()
        s += " so " + sgl.gen("end", max_tokens=3)

    @sgl.function
    def single(s, i):
        s += "The fox " + sgl.gen("a", max_tokens=3) + f" way {i}: " + sgl.gen("way", max_tokens=4)

    state = forked.run(**GREEDY)
    assert state["way"] == [single.run(i, **GREEDY)["way"] for i in range(3)]


def test_forks_before_any_text(engine):
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += ["The quick", "brown"]
        forks += sgl.gen("v", max_tokens=3)
        forks.join("concate_and_append")

    state = program.run(**GREEDY)
    alone = [continue_tokens(engine, encode(engine, text), 3) for text in ("The quick", "brown")]
    texts = [engine.tokenizer.decode(tokens) for tokens in alone]
    assert state.text() == f"The quick{texts[0]}brown{texts[1]}"


def test_failures_reach_forks_and_later_nodes(engine):
    long = "fox " * 2000

    @sgl.function
    def program(s):
        s += long + sgl.gen("a", max_tokens=4)
        s += " more " + sgl.gen("b", max_tokens=4)
        forks = s.fork(2)
        forks += sgl.gen("c", max_tokens=4)
        forks.join()

    state = program.run()
    for name in "abc":
        with pytest.raises(sgl.ProgramError):
            state[name]
    assert type(state.error().__cause__).__name__ == "ContextLengthError" and state.text() == long


def test_closing_the_engine_fails_what_waits(path):
    @sgl.function
    def program(s):
        s += "x" + sgl.gen("a", max_tokens=400, ignore_eos=True) + sgl.select("c", ["x", "y"]) + sgl.gen("b")
        forks = s.fork(2)
        forks += "y" + sgl.gen("c")
        return forks

    engine = sgl.Engine(str(path), dtype="float32", threads=1)
    state = program.run(backend=engine)
    engine.close()
    for read in (lambda: state["a"], lambda: state["b"], lambda: state.ret_value[1]["c"]):
        with pytest.raises(sgl.ProgramError, match="EngineClosed"):
            read()
    assert state.text() == "x"
    with pytest.raises(EngineClosed):
        program.run(backend=engine)


# --- many programs


def test_batches(engine):
    @sgl.function
    def program(s, i):
        s += f"Number {i % 7} is " + sgl.gen("a", max_tokens=3) + " or " + sgl.select("c", ["even", "odd"])

    states = program.run_batch([(i,) for i in range(120)], progress_bar=False, **GREEDY)
    expected = [program.run(i, **GREEDY).text() for i in range(7)]
    assert [state.text() for state in states] == [expected[i % 7] for i in range(120)]


def test_readers_and_seeds_in_batches():
    @sgl.function
    def program(s):
        s += "Start " + sgl.gen("a", max_tokens=6)
        s += s["a"][::-1] + sgl.gen("b", max_tokens=3)

    texts = [state.text() for state in program.run_batch([{}] * 12, seed=3, num_threads=3)]
    assert texts == [state.text() for state in program.run_batch([{}] * 12, seed=3)]
    assert texts == [state.text() for state in program.run_batch([{}] * 12, seed=3, generator_style=True)]
    assert texts[0] == program.run(seed=3).text() and len(set(texts)) > 6


# --- streaming


def test_chunks_add_up_to_the_text(engine):
    @sgl.function
    def program(s):
        s += "Hello " + sgl.gen("a", max_tokens=20, return_logprob=True) + "!" + sgl.select("c", ["x", "y"])

    state = program.run(stream=True, **GREEDY)
    assert "".join(state.text_iter("a")) == state["a"]
    assert "".join(state.text_iter()) == state.text() == program.run(**GREEDY).text()

    async def read():
        streamed = program.run(stream=True, **GREEDY)
        return [pair async for pair in streamed.text_async_iter("a", return_meta_data=True)]

    pairs = asyncio.run(read())
    metas = [meta for _, meta in pairs]
    assert "".join(delta for delta, _ in pairs) == state["a"] and len(pairs) > 3
    assert sum(len(meta["output_token_logprobs"]) for meta in metas) == 20
    lengths = [meta["output_token_logprobs_length"] for meta in metas]
    assert lengths == sorted(lengths) and lengths[-1] == 20
    assert metas[-1]["finish_reason"] == {"type": "length", "length": 20}


# --- roles, caching, the front


def test_the_tokenizers_own_chat_template(engine):
    @sgl.function
    def chat(s):
        s += sgl.system("be brief") + sgl.user("hi")
        s += sgl.assistant(sgl.gen("a", max_tokens=4))

    backend = as_backend(engine)
    assert backend.get_chat_template().name == "tokenizer" and backend.get_chat_template().stops == ("<|im_end|>",)
    state = chat.run(temperature=0)
    assert state.text() == engine.tokenizer.render_chat(
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": state["a"]},
        ]
    )


def test_the_template_can_be_changed(engine):
    @sgl.function
    def chat(s):
        s += sgl.user("hi")

    engine.chat_template = get_chat_template("vicuna_v1.1")
    try:
        assert chat.run().text().endswith("polite answers to the user's questions. USER:hi ")
    finally:
        del engine.chat_template
    assert chat.run().text() == "<|im_start|>user\nhi<|im_end|>\n"


def test_special_stops_are_tokens(engine):
    backend = EmbeddedBackend(engine)

    @sgl.function
    def program(s):
        s += "x" + sgl.gen(
            "a", max_tokens=200, logit_bias={engine.tokenizer.token_id("<|im_end|>"): 50.0}, stop="<|im_end|>"
        )

    state = program.run(backend=backend)
    assert state["a"] == "" and state.get_meta_info("a")["finish_reason"]["type"] == "stop"


def test_cached_prefixes(engine):
    @sgl.function
    def program(s, question):
        s += "A long introduction that every question of this program starts with, word for word. "
        s += question + sgl.gen("a", max_tokens=2)

    sgl.flush_cache()
    program.cache()
    assert program.run("Why?", **GREEDY).get_meta_info("a")["cached_tokens"] > 20
    info = sgl.get_server_info()
    assert info["tokenizer_path"] == info["model_path"] == engine.model_path and info["max_total_num_tokens"] > 0


@pytest.mark.parametrize("choices", [["one", "two"], [f"{i * 7919 % 100_000}" for i in range(60)]])
def test_a_select_in_a_bare_fork_tells_what_it_shares(engine, choices):
    @sgl.function
    def program(s):
        s += "A text that both forks go on from, without a word of their own. " + sgl.gen("a", max_tokens=2)
        s["a"]
        forks = s.fork(2)
        forks += sgl.select("c", choices)
        s["shared"] = [fork.get_meta_info("c")["cached_tokens"] for fork in forks]

    sgl.flush_cache()
    state = program.run(**GREEDY)
    assert min(state["shared"]) >= state.get_meta_info("a")["prompt_tokens"]


def test_pages_come_back(engine):
    @sgl.function
    def program(s):
        s += "Some text " + sgl.gen("a", max_tokens=4)
        forks = s.fork(4)
        forks += sgl.select("c", ["one", "two"]) + sgl.gen("b", max_tokens=4)
        s["b"] = [fork["b"] for fork in forks]

    states = program.run_batch([{}] * 10)
    assert all(state.error() is None for state in states)
    gc.collect()
    for _ in range(100):
        sgl.flush_cache()
        stats = engine.stats()
        if stats.pages_free == stats.pages_total:
            break
        time.sleep(0.02)
    assert stats.pages_free == stats.pages_total


def test_model_names():
    hub = "/root/.cache/huggingface/hub/models--Qwen--Qwen2.5-7B-Instruct/snapshots/abc"
    assert model_name_of(hub) == "Qwen/Qwen2.5-7B-Instruct"
    assert model_name_of("/data/mistral-instruct-cache/meta/llama-3-8b-instruct") == "meta/llama-3-8b-instruct"


def test_what_is_no_backend():
    with pytest.raises(BadValueError, match="is not a backend"):
        sgl.set_default_backend("http://localhost")


@pytest.mark.parametrize("run", range(3))
def test_results_do_not_depend_on_timing(run):
    @sgl.function
    def program(s):
        s += "Go " + sgl.gen("a", max_tokens=3)
        forks = s.fork(3)
        forks += lambda i: sgl.select("c", ["left", "right"]) + f" {i} " + sgl.gen("b", max_tokens=3)
        forks.join()
        s += s["b"][0]

    texts = {state.text() for state in program.run_batch([{}] * 8, **GREEDY)}
    assert len(texts) == 1


# --- random programs against the obvious way


WORDS = [
    "The quick",
    " brown",
    "fo",
    "x jumps",
    " ",
    "over\n",
    "1 + ",
    '{"name": ',
    "lazy dog" * 30,
    "<|im_end|>",
    "Zo",
    "ë",
]
OPTIONS = [["brown", "bro", "fox"], [" yes", " no", " perhaps so"], ["1", "12", "123"], ["x jumps", "x ju", "x"]]


def random_program(rng: random.Random) -> list[tuple[str, Any]]:
    kinds = rng.choices(["literal", "gen", "select", "fork"], weights=[5, 2, 2, 2], k=rng.randint(2, 9))
    values = {"literal": lambda: rng.choice(WORDS), "gen": lambda: rng.randint(1, 4), "fork": lambda: None}
    values["select"] = lambda: rng.choice(OPTIONS)
    return [("literal", rng.choice(WORDS))] + [(kind, values[kind]()) for kind in kinds]


@sgl.function
def scripted(s, script):
    for kind, value in script:
        if kind == "literal":
            s += value
        elif kind == "gen":
            s += sgl.gen(max_tokens=value)
        elif kind == "select":
            s += sgl.select(choices=value)
        else:
            s = s.fork(2)[1]
    s += sgl.gen("last", max_tokens=1)
    return s.text(), tokens_of(s)


def by_hand(engine, script) -> tuple[str, list[int]]:
    """The same program with one row of tokens, computed anew for each step."""
    done, segment, text = [], "", ""

    def row(more=""):
        return done + encode(engine, segment + more, start=not done)

    for kind, value in [*script, ("gen", 1)]:
        if kind == "literal":
            text, segment = text + value, segment + value
        elif kind == "gen":
            before = row()
            done, segment = before + continue_tokens(engine, before, value), ""
            text += engine.tokenizer.decode(done[len(before) :])
        elif kind == "select":
            rows = [row(choice) for choice in value]
            start = common_prefix([np.array(r, np.int32) for r in [row(), *rows]])
            means = [np.mean(found) if (found := logprobs(engine, r, start)) else -math.inf for r in rows]
            text, segment = text + value[int(np.argmax(means))], segment + value[int(np.argmax(means))]
    return text, done


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(engine, seed):
    script = random_program(random.Random(seed))
    text, tokens = scripted.run(script, **GREEDY).ret_value
    expected_text, expected_tokens = by_hand(engine, script)
    assert tokens == expected_tokens, script
    assert text == expected_text


def test_the_bundled_engine_is_shared_and_starts_late(path, monkeypatch):
    @sgl.function
    def program(s):
        s += "x" + sgl.gen("a", max_tokens=2)

    sgl.set_default_backend(None)
    monkeypatch.setattr("sgl.runtime.engine.NANO", path)
    monkeypatch.setattr(default_backend, "_shared", default_backend._DefaultBackend())
    assert sgl.flush_cache() is False and sgl.get_server_info() is None
    first, second = program.run(**GREEDY), program.run(**GREEDY)
    assert first.text() == second.text()
    started = default_backend._shared.started
    assert first.stream_executor.backend is second.stream_executor.backend
    assert sgl.get_server_info()["model_path"] == str(path)
    started.close()
    assert program.run(**GREEDY).text() == first.text()
    default_backend._shared.started.close()


@pytest.mark.parametrize("whitespace,item,key", [("compact", ",", ":"), ("spaced", ", ", ": ")])
def test_json_is_written_as_the_engine_is_told(path, whitespace, item, key):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "array", "items": {"enum": [1, "x"]}, "maxItems": 3}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }

    @sgl.function
    def program(s):
        s += "Say: " + sgl.gen("x", json_schema=schema, max_tokens=80, temperature=2.0)

    with sgl.Engine(str(path), dtype="float32", threads=1, json_options={"whitespace": whitespace}) as told:
        for state in program.run_batch([{}] * 12, backend=told):
            assert state["x"] == json.dumps(json.loads(state["x"]), separators=(item, key))

"""What programs rely on: order, laziness, variables, forks, roles, errors."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from pathlib import Path

import pytest
from alone import alone
from lang_rules import RuleBackend

import sgl
from sgl.lang.errors import ArgumentsError, BadValueError, BatchError, StateEndedError, UnknownOptionError


@pytest.fixture
def backend():
    made = RuleBackend()
    yield made
    made.gate.set()
    made.worker.shutdown()


def failing(prompt, request):
    if prompt.endswith("!"):
        raise OverflowError("no exclamations")
    return "ok"


@sgl.function
def chain(s, topic, end="."):
    """A chain."""
    s += "About " + topic + ": " + sgl.gen("a") + " then " + sgl.gen("b", max_tokens=4) + end


def test_text_and_variables(backend):
    state = chain.run("cats", backend=backend)
    assert state.text() == "About cats: <2> then <4>."
    assert (state["a"], state["b"]) == ("<2>", "<4>")
    assert repr(state) == "ProgramState(About cats: <2> then <4>.)"
    assert state.error() is None and "a" in state
    with pytest.raises(KeyError, match=r"no variable 'zz'; (known|did you mean)"):
        state["zz"]
    with pytest.raises(KeyError):
        state["c"]
    assert state.get_meta_info("c") is None
    assert state.get_meta_info("a")["finish_reason"]["type"] == "stop"


def test_metadata_of_the_function():
    assert (chain.__name__, chain.__doc__, chain.func.__name__) == ("chain", "A chain.", "chain")
    assert chain.arg_names == ["topic", "end"] and chain.arg_defaults == ["."]
    assert sgl.function(num_api_spec_tokens=5)(chain.func).num_api_spec_tokens == 5


def test_first_parameter_must_be_s():
    with pytest.raises(ArgumentsError, match="must be `s`"):

        @sgl.function
        def wrong(state):
            pass


def test_run_returns_before_generation_ends(backend):
    backend.gate.clear()
    state = chain.run("cats", backend=backend)
    assert "a" not in state
    assert state.stream_executor.variables == {} and list(state.stream_executor.variable_event) == ["a", "b"]
    backend.gate.set()
    assert state["b"] == "<4>"


@alone
def test_one_thread_runs_a_whole_batch_that_reads_nothing(backend):
    backend.gate.clear()
    before = threading.active_count()
    states = [chain.run(str(i), backend=backend) for i in range(200)]
    assert threading.active_count() <= before + 1
    backend.gate.set()
    assert [state["a"] for state in states] == ["<2>"] * 200


def test_run_options_reach_the_gen_and_gen_options_win(backend):
    chain.run("x", backend=backend, temperature=0.5, max_new_tokens=9, stop=["\n"], seed=3).sync()
    first, second = (request.options for _, request in backend.requests)
    assert (first.temperature, first.max_new_tokens, first.stop, first.seed) == (0.5, 9, ("\n",), 3)
    assert (second.max_new_tokens, second.top_k, second.n) == (4, -1, 1)


def test_options_that_are_zero_or_empty_override(backend):
    @sgl.function
    def program(s):
        s += sgl.gen("a", max_tokens=0, stop=[], temperature=0, ignore_eos=False)

    program.run(backend=backend, stop="x", ignore_eos=True, max_new_tokens=5).sync()
    options = backend.requests[0][1].options
    assert (options.max_new_tokens, options.stop, options.temperature, options.ignore_eos) == (
        0,
        (),
        0.0,
        False,
    )


def test_a_shared_stop_list_does_not_grow():
    stop = ["\n"]
    backend = RuleBackend(template="chatml")

    @sgl.function
    def program(s):
        s += sgl.gen("a", stop=stop)

    for _ in range(3):
        program.run(backend=backend).sync()
    assert stop == ["\n"] and backend.requests[-1][1].stops == ("\n", "<|im_end|>")


def test_parameters_named_like_options_belong_to_the_program(backend):
    @sgl.function
    def program(s, n, temperature=7):
        s += f"{n} {temperature} " + sgl.gen("a")

    assert program.run(n=3, backend=backend).text() == "3 7 <2>"
    assert program.run(5, temperature=1, backend=backend).text() == "5 1 <2>"
    assert backend.requests[-1][1].options.temperature == 1.0


def test_unknown_names_are_errors_that_name_the_nearest(backend):
    with pytest.raises(UnknownOptionError, match="did you mean 'temperature'"):
        chain.run("x", backend=backend, temprature=1)
    with pytest.raises(UnknownOptionError, match="did you mean 'max_tokens'"):
        sgl.gen("a", max_token=3)
    with pytest.raises(UnknownOptionError, match="did you mean 'verbosity'"):
        sgl.global_config.verbostiy = 1
    with pytest.raises(UnknownOptionError, match="did you mean 'temperature'"):
        chain.run_batch([], temperatur=1)
    with pytest.raises(AttributeError, match="did you mean 'select'"):
        sgl.selct  # noqa: B018
    with pytest.raises(BadValueError, match="max_new_tokens is 'many'"):
        chain.run("x", backend=backend, max_new_tokens="many")


def test_bind_wins_and_keeps_options(backend):
    bound = sgl.function(chain.func, num_api_spec_tokens=3).bind(topic="dogs")
    assert bound.run(backend=backend).text().startswith("About dogs")
    assert bound.run(topic="cats", backend=backend).text().startswith("About dogs")
    assert bound.num_api_spec_tokens == 3
    with pytest.raises(TypeError):
        bound.run("cats", backend=backend)
    with pytest.raises(ArgumentsError, match="did you mean 'topic'"):
        chain.bind(topc=1)


def test_variables_can_be_set_and_reused(backend):
    @sgl.function
    def program(s):
        s += "one " + sgl.gen("x")
        s["y"] = s["x"] + "!"
        s += " two " + sgl.gen("x")
        s += sgl.gen()

    state = program.run(backend=backend)
    assert (state["x"], state["y"]) == ("<3>", "<1>!")
    state.sync()
    assert state.stream_executor.variables[None] == "<4>"


def test_fstring_of_a_node_raises():
    for use in (
        lambda: f"{sgl.gen('a')}",
        lambda: str(sgl.select("a", ["x"])),
        lambda: "{}".format(*[sgl.user("x")]),
    ):
        with pytest.raises(TypeError, match="used as a string"):
            use()
    assert repr(sgl.gen("a")) == "Gen('a')"
    with pytest.raises(TypeError):
        1 + sgl.gen("a")


def test_what_can_be_appended(backend):
    @sgl.function
    def program(s, value):
        s += value

    with pytest.raises(ValueError, match="Tried to append None to state"):
        program.run(None, backend=backend)
    with pytest.raises(BadValueError, match="42"):
        program.run(42, backend=backend)


def test_several_samples(backend):
    @sgl.function
    def program(s):
        s += "go " + sgl.gen("a", n=3, seed=1) + "."

    state = program.run(backend=backend)
    assert len(state["a"]) == 3 and state["a"][0] == "<1:1>" and len(set(state["a"])) == 3
    assert state.text() == "go <1:1>."
    assert len(state.get_meta_info("a")) == 3


def test_select(backend):
    @sgl.function
    def program(s):
        s += "go " + sgl.select("a", ["long one", "no", "maybe"]) + " " + sgl.gen("b", choices=["zz", "y"])

    state = program.run(backend=backend)
    assert state.text() == "go no y" and state["b"] == "y"
    assert state.get_meta_info("a")["normalized_prompt_logprobs"] == [-8.0, -2.0, -5.0]
    assert sgl.gen("b", choices=["x"], temperature=0, max_tokens=3).choices_method is sgl.token_length_normalized
    for wrong in (
        {"choices": []},
        {"choices": None},
        {"choices": "abc"},
        {"choices": ["a"], "temperature": -1},
    ):
        with pytest.raises(BadValueError):
            sgl.select("a", **wrong)


# --- errors


def test_a_failed_node_is_told_and_ends_the_text():
    backend = RuleBackend(failing)

    @sgl.function
    def program(s):
        s += "fine " + sgl.gen("a") + " boom!"
        s += sgl.gen("b")
        s += " after " + sgl.gen("c")

    state = program.run(backend=backend)
    assert state.text() == "fine ok boom!"
    assert state["a"] == "ok"
    for name in ("b", "c"):
        with pytest.raises(sgl.ProgramError, match="no exclamations") as caught:
            state[name]
        assert isinstance(caught.value.__cause__, OverflowError)
    error = state.error()
    assert isinstance(error, sgl.ProgramError) and isinstance(error.__cause__, OverflowError)
    assert error.where.file == __file__ and "Gen('b')" in str(error)
    line = Path(__file__).read_text().splitlines()[error.where.line - 1]
    assert 'sgl.gen("b")' in line


def test_appending_after_a_failed_node_never_hangs():
    backend = RuleBackend(failing)

    @sgl.function
    def program(s):
        s += "boom!" + sgl.gen("a")
        s.sync()
        s += " more " + sgl.gen("b")
        forks = s.fork(2)
        forks += sgl.gen("c")
        forks.join()

    state = program.run(backend=backend)
    assert state.text() == "boom!"
    for name in "abc":
        with pytest.raises(sgl.ProgramError, match="no exclamations"):
            state[name]


def test_a_request_that_the_backend_refuses_raises_at_its_line(backend):
    @sgl.function
    def program(s):
        s += "x" + sgl.gen("a", json_schema={"type": "object"})

    with pytest.raises(sgl.ProgramError, match="knows no schemas") as caught:
        program.run(backend=backend)
    assert isinstance(caught.value.__cause__, ValueError)


def test_body_errors_propagate(backend):
    @sgl.function
    def program(s):
        s += "x"
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        program.run(backend=backend)


def test_appending_after_the_end_raises(backend):
    state = chain.run("x", backend=backend)
    with pytest.raises(StateEndedError, match=r"test_lang_programs\.py:\d+"):
        state += "more"
    with pytest.raises(StateEndedError):
        state.fork(2)


def test_use_thread_false_raises_where_it_was_appended():
    lines = []

    @sgl.function
    def program(s):
        s += "boom!"
        lines.append(1)
        s += sgl.gen("a")
        lines.append(2)

    with pytest.raises(sgl.ProgramError):
        program.run(backend=RuleBackend(failing), use_thread=False)
    assert lines == [1]


# --- forks


def test_fork_and_gather(backend):
    @sgl.function
    def program(s):
        s += "base "
        s += sgl.gen("before")
        forks = s.fork(3)
        forks += lambda i: f" path {i} " + sgl.gen("tip")
        forks[1] += sgl.gen("only one")
        forks.join()
        s += " end"

    state = program.run(backend=backend)
    assert state.text() == "base <1> end"
    assert state["tip"] == ["<4>"] * 3 and len(state["only one"]) == 1 and state["before"] == "<1>"


def test_groups(backend):
    @sgl.function
    def program(s):
        s += "x"
        forks = s.fork(2)
        forks += ["a", "b", "ignored"]
        forks += "!"
        forks += sgl.gen("v")
        assert len(forks) == 2 and len(forks[0:1]) == 1
        s["texts"] = [fork.text() for fork in forks]
        with pytest.raises(IndexError):
            forks += ["too few"]
        with pytest.raises(ValueError, match="Invalid join mode"):
            forks.join("sideways")
        assert len(s.fork(0)) == 0

    assert program.run(backend=backend)["texts"] == ["xa!<1>", "xb!<1>"]


def test_join_skips_what_the_parent_has_and_children_stay_readable(backend):
    @sgl.function
    def program(s):
        s["v"] = "mine"
        for _ in range(2):
            forks = s.fork(1)
            forks[0] += "word " + sgl.gen("v") + sgl.gen("w")
            forks.join()
        assert forks[0]["v"] == "<1>"
        with pytest.raises(StateEndedError):
            forks[0] += "late"

    state = program.run(backend=backend)
    assert state["v"] == "mine" and state["w"] == ["<2>"]


def test_concatenate(backend):
    @sgl.function
    def program(s):
        s += "p"
        forks = s.fork(2)
        forks += lambda i: f" [{i}]" + sgl.gen("v")
        s += " meanwhile"
        forks.join("concate_and_append")

    assert program.run(backend=backend).text() == "p meanwhile [0]<2> [1]<2>"


def test_nested_forks_give_nested_lists(backend):
    @sgl.function
    def program(s):
        outer = s.fork(2)
        for child in outer:
            inner = child.fork(2)
            inner += sgl.gen("v")
            inner.join()
        outer.join()

    assert program.run(backend=backend)["v"] == [["<0>", "<0>"], ["<0>", "<0>"]]


def test_forks_return_before_their_parent_is_computed(backend):
    backend.gate.clear()

    @sgl.function
    def program(s):
        s += "a " + sgl.gen("x")
        forks = s.fork(2)
        forks += sgl.gen("y")
        return list(forks)

    state = program.run(backend=backend)
    children = state.ret_value
    backend.gate.set()
    assert children[1]["y"] == "<2>" and children[0]["x"] == "<1>"
    children[0] += " later " + sgl.gen("z")
    assert children[0].text() == "a <1><2> later <3>"


def test_copy_gathers_lists_of_one(backend):
    @sgl.function
    def program(s):
        with s.copy() as c:
            c += sgl.gen("v")

    assert program.run(backend=backend)["v"] == ["<0>"]


def test_a_failed_child_is_told_when_its_list_is_read():
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += ["fine", "boom!"]
        forks += sgl.gen("v")
        forks.join()

    state = program.run(backend=RuleBackend(failing))
    with pytest.raises(sgl.ProgramError, match="no exclamations"):
        state["v"]
    assert state.error() is None


def test_forks_and_samples_have_seeds_of_their_own(backend):
    @sgl.function
    def program(s):
        first, second = s.fork(2), s.fork(2)
        for group in (first, second):
            group += sgl.gen("v")
        return [fork["v"] for fork in [*first, *second]]

    seeds = program.run(backend=backend, seed=5).ret_value
    assert len(set(seeds)) == 4 and seeds == program.run(backend=backend, seed=5).ret_value


# --- roles


def test_roles_in_all_their_forms(backend):
    @sgl.function
    def forms(s, how):
        if how == 0:
            s += sgl.user("x") + sgl.assistant(sgl.gen("a"))
        elif how == 1:
            s += sgl.user_begin() + "x" + sgl.user_end() + sgl.assistant_begin() + sgl.gen("a") + sgl.assistant_end()
        elif how == 2:
            s.user("x")
            s.assistant(sgl.gen("a"))
        elif how == 3:
            with s.user():
                s += "x"
            with s.assistant():
                s += sgl.gen("a")
        elif how == 4:
            s += s.user("x")
            s += s.assistant(sgl.gen("a"))
        else:
            s += s.user("x") + s.assistant(sgl.gen("a"))

    with pytest.warns(UserWarning, match="no known chat template"):
        states = [forms.run(how, backend=backend) for how in range(6)]
    assert {state.text() for state in states} == {"USER:x\nASSISTANT:<2>\n"}
    expected = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<2>"}]
    assert all(state.messages() == expected for state in states)


def test_a_turn_of_one_state_can_be_appended_to_another():
    @sgl.function
    def program(s):
        forks = s.fork(2)
        turn = forks[0].user("x")
        forks[0] += turn
        forks[1] += turn
        return [fork.text() for fork in forks]

    assert program.run(backend=RuleBackend(template="vicuna_v1.1")).ret_value[1].endswith("USER:x ")
    texts = program.run(backend=RuleBackend(template="vicuna_v1.1")).ret_value
    assert texts[0] == texts[1]


def test_default_system_prompt_and_stops():
    backend = RuleBackend(template="qwen")

    @sgl.function
    def program(s):
        s += sgl.user("hi")
        s += sgl.assistant_begin() + "Sure" + sgl.gen("a", stop=["."])

    state = program.run(backend=backend)
    assert state.text() == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nSure<10>"
    )
    assert backend.requests[0][1].stops == (".", "<|im_end|>")
    assert [message["role"] for message in state.messages()] == ["system", "user"]
    assert state.stream_executor.cur_role == "assistant"


def test_role_mistakes_raise(backend):
    @sgl.function
    def nested(s):
        s += sgl.user_begin() + sgl.assistant("x")

    @sgl.function
    def unopened(s):
        s += sgl.user_end()

    with pytest.raises(sgl.ProgramError, match="Nested roles are not allowed"), pytest.warns(UserWarning):
        nested.run(backend=backend)
    with pytest.raises(sgl.ProgramError, match="end of a 'user' turn"):
        unopened.run(backend=backend)


def test_forks_inherit_the_open_role():
    backend = RuleBackend(template="chatml")

    @sgl.function
    def program(s):
        s += sgl.user("q")
        with s.assistant():
            forks = s.fork(2)
            forks += sgl.gen("v")
            for fork in forks:
                fork += sgl.assistant_end()
            s["roles"] = [fork.messages()[-1] for fork in forks]
            forks.join()
        s += sgl.tool("t")

    state = program.run(backend=backend)
    assert state["roles"] == [{"role": "assistant", "content": "<3>"}] * 2
    assert state.messages()[1:] == [{"role": "assistant", "content": ""}, {"role": "tool", "content": "t"}]


def test_var_scope(backend):
    @sgl.function
    def program(s):
        s += "a "
        with s.var_scope("inner"):
            s += "b " + sgl.gen("x")
        s += " c"

    state = program.run(backend=backend)
    assert state["inner"] == "b <2>" and list(state.text_iter("inner")) == ["b ", "<2>"]


def test_nested_programs_are_independent(backend):
    @sgl.function
    def outer(s):
        states = [chain(topic) for topic in ("a", "b")]
        s += states[0]["a"] + states[1]["b"]

    sgl.set_default_backend(backend)
    try:
        assert outer.run().text() == "<2><4>"
        assert outer().text() == "<2><4>"
    finally:
        sgl.set_default_backend(None)


# --- batches


def test_batches_keep_order_and_accept_dicts_and_tuples(backend):
    items = [{"topic": "x " * i} for i in range(50)]
    states = chain.run_batch(items, backend=backend, temperature=0.1)
    assert [state["a"] for state in states] == [f"<{i + 2}>" for i in range(50)]
    tuples = chain.run_batch([("one",), ("two", "!")], backend=backend)
    assert [state.text()[-1] for state in tuples] == [".", "!"]
    assert chain.run_batch([], backend=backend) == []
    assert items[0] == {"topic": ""}


def test_batch_arguments_are_checked(backend):
    for wrong in ([("a", "b", "c")], [()], {"topic": "x"}, [{"topic": 1}, ("x",)], [{"topics": "x"}]):
        with pytest.raises(ArgumentsError):
            chain.run_batch(wrong, backend=backend)
    with pytest.raises(BadValueError, match="num_threads is 0"):
        chain.run_batch([("a",)] * 2, backend=backend, num_threads=0)


@pytest.mark.whole
@alone
def test_ten_thousand_programs_need_few_threads(backend):
    before, peak = threading.active_count(), []

    @sgl.function
    def program(s, i):
        s += f"{i} " + sgl.gen("a") + sgl.gen("b")
        peak.append(threading.active_count())

    states = program.run_batch([(i,) for i in range(10_000)], backend=backend, num_threads=16)
    assert len(states) == 10_000 and states[-1]["b"] == "<2>"
    assert max(peak) <= before + 17


def test_bodies_that_read_run_in_the_pool(backend):
    @sgl.function
    def program(s, i):
        s += sgl.gen("a")
        s += s["a"] + sgl.gen("b")

    states = program.run_batch([(i,) for i in range(100)], backend=backend, num_threads=4)
    assert all(state["b"] == "<1>" for state in states)
    assert len(program.run_batch([(1,), (2,)], backend=backend, num_threads=1)) == 2


@sgl.function
def perhaps(s, mark):
    s += mark + sgl.gen("a")
    if mark == "own":
        raise LookupError("mine")
    if mark.startswith("read"):
        s += s["a"]


def test_failing_items_leave_the_others_alone():
    backend = RuleBackend(failing)
    items = [{"mark": mark} for mark in ("fine", "!", "read!", "read")]
    states = perhaps.run_batch(items, backend=backend)
    assert [state.error() is None for state in states] == [True, False, False, True]
    assert isinstance(states[2].error().__cause__, OverflowError)


def test_errors_of_bodies_are_raised_after_the_others_have_run():
    done = []

    @sgl.function
    def program(s, i):
        if i == 0:
            raise LookupError("mine")
        s += sgl.gen("a")
        s.sync()
        done.append(i)

    with pytest.raises(BatchError, match="LookupError: mine"):
        program.run_batch([(i,) for i in range(9)], backend=RuleBackend())
    assert sorted(done) == list(range(1, 9))


def test_return_exceptions(caplog):
    items = [{"mark": mark} for mark in ("fine", "!", "own", "read!")]
    results = perhaps.run_batch(items, backend=RuleBackend(failing), return_exceptions=True)
    assert results[0]["a"] == "ok"
    assert [type(item).__name__ for item in results[1:]] == ["ProgramError", "LookupError", "ProgramError"]
    assert not caplog.records, "what the caller gets as a result is not logged too"


def test_an_error_that_nobody_is_handed_is_logged(caplog):
    backend = RuleBackend(failing)
    perhaps.run_batch([{"mark": "!"}, {"mark": "fine"}], backend=backend)
    backend.worker.submit(int).result()  # the log comes behind the result
    assert [(record.levelname, "failed" in record.message) for record in caplog.records] == [("WARNING", True)]


def test_the_error_of_a_fork_that_nobody_reads_is_logged(caplog):
    @sgl.function
    def program(s):
        s += "fine "
        (fork,) = s.fork(1)
        fork += "!" + sgl.gen("a")
        fork.sync()

    backend = RuleBackend(failing)
    (state,) = program.run_batch([{}], backend=backend, return_exceptions=True)
    backend.worker.submit(int).result()
    assert state.error() is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_generator_style_is_lazy_and_ordered(backend):
    started = []

    @sgl.function
    def program(s, i):
        started.append(i)
        s += f"{i} " + sgl.gen("a")

    results = program.run_batch([(i,) for i in range(2000)], backend=backend, generator_style=True, num_threads=4)
    assert started == []
    assert next(results).text() == "0 <1>"
    results.close()
    assert len(started) < 1000
    everything = list(program.run_batch([(i,) for i in range(300)], backend=backend, generator_style=True))
    assert [state.text() for state in everything] == [f"{i} <1>" for i in range(300)]


def test_progress_bar_counts_finished_programs(backend, capsys):
    chain.run_batch([("x",)] * 5, backend=backend, progress_bar=True)
    assert "5/5" in capsys.readouterr().err


def test_context_variables_reach_the_bodies(backend):
    user = contextvars.ContextVar("user", default="nobody")

    @sgl.function
    def program(s):
        s += user.get()

    user.set("me")
    assert [state.text() for state in program.run_batch([{}] * 3, backend=backend)] == ["me"] * 3
    assert program.run(backend=backend, stream=True).text() == "me"


# --- streaming


@sgl.function
def talk(s):
    s += "Say: "
    s += sgl.gen("a") + sgl.select("pick", ["x", "yy"])


def words(prompt, request):
    return "one two three"


def test_streams_are_replayable_and_complete():
    backend = RuleBackend(words)
    backend.gate.clear()
    state = talk.run(backend=backend, stream=True)
    threading.Timer(0.05, backend.gate.set).start()
    assert [t for t in state.text_iter("a") if t] == ["one ", "two ", "three"]
    assert list(state.text_iter()) == ["Say: ", "one ", "two ", "three", "x"]
    assert list(state.text_iter()) == ["Say: ", "one ", "two ", "three", "x"]
    assert list(state.text_iter("pick")) == ["x"]
    assert state.text() == "Say: one two threex"


def test_states_that_do_not_stream_give_everything_at_once():
    state = talk.run(backend=RuleBackend(words))
    assert list(state.text_iter()) == ["Say: one two threex"]
    assert list(state.text_iter("a")) == ["one two three"]


def test_readers_of_a_streaming_state_wait_for_the_body(backend):
    @sgl.function
    def slow(s):
        time.sleep(0.05)
        s += "hi " + sgl.gen("a")
        s["plain"] = 1

    state = slow.run(backend=backend, stream=True)
    assert state["a"] == "<1>" and state["plain"] == 1
    assert slow.run(backend=backend, stream=True).text() == "hi <1>"
    with pytest.raises(KeyError):
        state["nothing"]


def test_errors_reach_the_readers_of_a_stream():
    @sgl.function
    def program(s):
        s += "fine " + sgl.gen("a") + "!" + sgl.gen("b")

    @sgl.function
    def broken(s):
        s += "x"
        raise LookupError("mine")

    state = program.run(backend=RuleBackend(failing), stream=True)
    seen = []
    with pytest.raises(sgl.ProgramError, match="no exclamations"):
        seen.extend(state.text_iter())
    state = broken.run(backend=RuleBackend(), stream=True)
    with pytest.raises(LookupError, match="mine"):
        list(state.text_iter())
    assert isinstance(state.error(), LookupError)
    with pytest.raises(sgl.ProgramError, match="LookupError: mine; so variable 'a' was never made"):
        state["a"]


def test_async_streaming():
    async def read():
        state = talk.run(backend=RuleBackend(words), stream=True)
        deltas = [delta async for delta in state.text_async_iter("a")]
        pairs = [pair async for pair in state.text_async_iter("a", return_meta_data=True)]
        whole = [delta async for delta in state.text_async_iter()]
        assert await talk.run(backend=RuleBackend(words), stream=True).atext() == "".join(whole)
        assert await talk.run(backend=RuleBackend(words), stream=True).aget("pick") == "x"
        return deltas, pairs, whole

    deltas, pairs, whole = asyncio.run(read())
    assert deltas == ["one ", "two ", "three"]
    assert "".join(delta for delta, _ in pairs) == "one two three" and all("finish_reason" in meta for _, meta in pairs)
    assert "".join(whole) == "Say: one two threex"


def test_async_programs(backend):
    @sgl.function
    async def program(s, i):
        s += f"{i} " + sgl.gen("a")
        value = await s.aget("a")
        s += value
        await asyncio.sleep(0)
        if i == 3:
            raise LookupError("mine")
        return await s.atext()

    async def main():
        one = await program.arun(1, backend=backend)
        many = await program.arun_batch([(i,) for i in range(5)], backend=backend, return_exceptions=True)
        plain = await chain.arun("x", backend=backend)
        return one, many, plain

    one, many, plain = asyncio.run(main())
    assert one.ret_value == "1 <1><1>" and plain["b"] == "<4>"
    assert [type(item).__name__ for item in many] == ["ProgramState"] * 3 + ["LookupError", "ProgramState"]
    assert program.run(2, backend=backend).ret_value == "2 <1><1>"


# --- lifetime


def test_states_are_freed_without_the_cycle_collector(backend):
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += sgl.gen("v")
        s += forks[0]["v"] + sgl.gen("w")

    gc.disable()
    try:
        state = program.run(backend=backend)
        state.sync()
        time.sleep(0.05)
        reference = weakref.ref(state.stream_executor)
        del state
        backend.worker.submit(int).result()
        assert reference() is None
    finally:
        gc.enable()


def test_ended_states_give_their_streams_back(backend):
    for state in chain.run_batch([("x",)] * 4, backend=backend):
        assert state.stream_executor.is_finished
    assert backend.open_streams == 0


def test_batches_leave_the_collector_as_it_was(backend):
    usual, seen = gc.get_threshold(), []

    @sgl.function
    def program(s):
        seen.append(gc.get_threshold()[0])
        raise LookupError("in the body")

    try:
        for mine in ((123, 4, 5), (0, 4, 5), (50_000, 4, 5)):
            gc.set_threshold(*mine)
            program.run_batch([{}, {}], backend=backend, return_exceptions=True)
            assert gc.get_threshold() == mine
    finally:
        gc.set_threshold(*usual)
    assert seen == [20_000, 20_000, 0, 0, 50_000, 50_000]

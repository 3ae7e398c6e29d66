"""The scripted backend: programs tested without a model, and scripts that no model could fulfil refused."""

from __future__ import annotations

import re
import threading
import time

import pytest
from alone import alone

import sgl
from sgl.lang.backend import Generated
from sgl.lang.backends.scripted.scripted_backend import Delayed, Scripted
from sgl.lang.errors import BadValueError, ProgramCancelled, ProgramError, ScriptError

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@sgl.function
def plan(s, topic):
    s += sgl.user("Plan " + topic)
    s += sgl.assistant(sgl.gen("plan", stop="\n") + sgl.select("mood", ["good", "bad"]))


@sgl.function
def one(s, **options):
    s += "prompt " + sgl.gen("x", **options)


def refusal(script, program=one, **options) -> str:
    """What the script is refused for."""
    with pytest.raises(ProgramError) as caught:
        program.run(backend=Scripted(script), **options)
    assert isinstance(caught.value.__cause__, ScriptError)
    return str(caught.value.__cause__)


def test_answers_by_name():
    backend = Scripted({"plan": ["walk", "swim"], "mood": "bad"}, chat_template="chatml")
    first, second = (plan.run(topic, backend=backend) for topic in ("day", "night"))
    assert (first["plan"], second["plan"], second["mood"]) == ("walk", "swim", "bad")
    assert first.text().endswith("<|im_start|>user\nPlan day<|im_end|>\n<|im_start|>assistant\nwalkbad<|im_end|>\n")
    assert backend.prompts("mood")[1].endswith("swim")
    call = backend.calls[0]
    assert (call.name, call.answer, call.options.stop, call.choices) == ("plan", "walk", ("\n",), None)
    assert (backend.calls[1].choices, backend.calls[1].options) == (["good", "bad"], None)
    backend.assert_exhausted()


def test_answers_by_prompt_in_order_and_by_function():
    by_prompt = Scripted({re.compile("night"): "sleep", re.compile("Plan"): "work", "mood": "good"})
    assert [plan.run(topic, backend=by_prompt)["plan"] for topic in ("night", "day")] == ["sleep", "work"]
    in_order = Scripted(["work", "bad"])
    assert plan.run("x", backend=in_order).messages()[-1]["content"] == "workbad"
    by_function = Scripted(lambda prompt, request: "good" if request.name == "mood" else f"{len(prompt)}")
    assert plan.run("x", backend=by_function)["plan"] == str(len("USER:Plan x\nASSISTANT:"))
    per_name = Scripted({"plan": lambda prompt, request: prompt[-3:].upper(), "mood": "good"})
    assert plan.run("x", backend=per_name)["plan"] == "NT:"


def test_what_is_not_scripted_names_what_is():
    assert "no answer for variable 'x'; did you mean 'xx'" in refusal({"xx": "a"})
    assert "no pattern ('day') is in its prompt" in refusal({re.compile("day"): "a"})
    assert "The prompt ends 'prompt '" in refusal({"y": "a"})
    backend = Scripted({"x": ["only"]})
    one.run(backend=backend)
    with pytest.raises(ProgramError, match="has 1 answers for variable 'x', but this is number 2"):
        one.run(backend=backend)


def test_what_is_left_over_is_told():
    backend = Scripted({"x": ["a", "b", "c"], "y": "never", re.compile("z+"): "never"})
    one.run(backend=backend)
    with pytest.raises(AssertionError, match=r"'x': 2 of 3 answers left, from 'b' on; variable 'y': never asked; prom"):
        backend.assert_exhausted()
    with pytest.raises(AssertionError, match="the program: 1 of 1 answers left"):
        Scripted(["a"]).assert_exhausted()


@pytest.mark.parametrize(
    "options, good, bad, why",
    [
        ({"regex": "[a-z]+"}, "abc", "abC", r"the regex \[a-z\]\+ does not allow it: 'C' cannot stand at character 2"),
        ({"regex": "(ab)+"}, "abab", "aba", r"not fulfilled at its end; it could end with 'b'"),
        ({"dtype": int}, "42", "x", "'x' cannot stand at character 0"),
        ({"json_schema": CITY}, '{"city": "Köln"}', '{"city": 5}', "JSON schema .* '5}' cannot stand at character 9"),
        ({"stop": "."}, "one", "one. two", "has the stop '.' in it, where the model's text ends; script 'one'"),
        ({"stop": ".", "keep_stop": True}, "one.", "one. two", "script 'one.'"),
        ({"stop_regex": "[0-9]"}, "one", "one 1 ", "has the stop '1' in it"),
    ],
)
def test_answers_that_no_model_could_give(options, good, bad, why):
    program = sgl.function(lambda s: s.__iadd__("prompt " + sgl.gen("x", **options)))
    assert program.run(backend=Scripted({"x": good}))["x"] == good
    assert re.search(why, refusal({"x": bad}, program))


def test_a_text_that_was_cut_may_be_incomplete():
    @sgl.function
    def cut(s):
        s += sgl.gen("x", json_schema=CITY)

    state = cut.run(backend=Scripted({"x": Generated('{"city": "K', {"truncated": True})}))
    assert state["x"] == '{"city": "K' and state.get_meta_info("x")["truncated"]


def test_values_stand_for_their_text():
    @sgl.function
    def typed(s):
        s += sgl.gen("n", dtype=int) + sgl.gen("b", dtype=bool) + sgl.gen("d", json_schema=CITY)

    state = typed.run(backend=Scripted({"n": 7, "b": True, "d": {"city": "Bonn"}}))
    assert (state["n"], state["b"], state["d"]) == ("7", "True", '{"city": "Bonn"}')
    assert "is not an answer; script text" in refusal({"x": object()})


def test_selects_take_a_choice_or_scores():
    @sgl.function
    def pick(s, method=None):
        s += "? " + sgl.select("c", ["aa", "b"], choices_method=method or sgl.token_length_normalized)

    assert pick.run(backend=Scripted({"c": "b"})).get_meta_info("c")["choice_probs"] == [0.0, 1.0]
    for method in (None, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized):
        state = pick.run(method, backend=Scripted({"c": {"aa": -3.0, "b": -1.0}}))
        assert state["c"] == "b" and state.get_meta_info("c")["normalized_prompt_logprobs"] == [-3.0, -1.0]
    assert "is not one of the choices ['aa', 'b']" in refusal({"c": "q"}, pick)
    assert "log-probabilities are scripted for ['aa']" in refusal({"c": {"aa": -1.0}}, pick)


def test_samples_forks_and_batches():
    @sgl.function
    def forked(s, word):
        s += word + sgl.gen("many", n=3)
        forks = s.fork(2)
        forks += lambda index: f" {index}:" + sgl.gen("part")
        forks.join()

    backend = Scripted({"many": ["a", "b", "c"], "part": lambda prompt, request: prompt[-2]})
    state = forked.run("w", backend=backend)
    assert (state["many"], state["part"], state.text()) == (["a", "b", "c"], ["0", "1"], "wa")
    echo = Scripted(lambda prompt, request: prompt[::-1])
    states = one.run_batch([{}] * 200, backend=echo)
    assert {state["x"] for state in states} == {" tpmorp"} and len(echo.calls) == 200


def test_streams_word_by_word():
    state = one.run(backend=Scripted({"x": "in four small pieces"}), stream=True)
    assert list(state.text_iter("x")) == ["in ", "four ", "small ", "pieces"]
    assert state.get_meta_info("x")["completion_tokens"] == 4


def test_failures_and_delays():
    @sgl.function
    def two(s):
        s += sgl.gen("a") + sgl.gen("b")

    error = two.run(backend=Scripted({"a": "x", "b": ConnectionError("gone")})).error()
    assert isinstance(error.__cause__, ConnectionError)
    began = time.perf_counter()
    state = two.run(backend=Scripted({"a": Delayed(0.05, "x"), "b": "y"}))
    assert not state.stream_executor.variables
    assert state.text() == "xy" and time.perf_counter() - began >= 0.05
    state = two.run(backend=Scripted({"a": Delayed(0.02, ValueError("late")), "b": Delayed(60, "y")}))
    assert "late" in str(state.error())


def test_a_delayed_run_can_be_cancelled():
    @sgl.function
    def two(s):
        s += sgl.gen("a") + sgl.gen("b")

    state = two.run(backend=Scripted({"a": Delayed(60, "x"), "b": Delayed(60, "y")}))
    state.cancel()
    assert isinstance(state.error(), ProgramCancelled)


@alone
def test_no_threads_without_delays():
    before = threading.active_count()
    plan.run_batch([{"topic": "a"}] * 5, backend=Scripted({"plan": "p", "mood": "good"}), num_threads=1)
    assert threading.active_count() == before


def test_scripts_of_the_wrong_kind():
    with pytest.raises(BadValueError, match="the script is 5; give a dict, a list or a function"):
        Scripted(5)
    with pytest.raises(BadValueError, match="3 cannot be a key of the script"):
        Scripted({3: "x"})

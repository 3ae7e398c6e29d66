"""What used to hang for ever in programs of this kind ends: with the value, or with an error that tells why."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from lang_rules import RuleBackend

import sgl
from sgl.lang.errors import ProgramError, StateEndedError, TraceError

SECONDS = 10.0


def ends(call: Callable[[], Any]) -> Any:
    """What `call` gives or raises; a failure of the test if it is still running after some seconds."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append((call(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "it hangs"
    value, error = found[0]
    if error is not None:
        raise error
    return value


def refuse(prompt: str, request: Any) -> str:
    if "BAD" in prompt:
        raise OSError("the server is on fire")
    return f"<{len(prompt)}>"


@pytest.fixture
def backend():
    return RuleBackend(refuse)


@sgl.function
def fails(s):
    s += "BAD " + sgl.gen("a")


AFTERWARDS: dict[str, Callable[[Any], Any]] = {
    "literal": lambda s: s.__iadd__("more").text(),
    "gen": lambda s: s.__iadd__(sgl.gen("b")).text(),
    "select": lambda s: s.__iadd__(sgl.select("b", ["x", "y"])).text(),
    "role": lambda s: s.user("hello") and s.text(),
    "fork": lambda s: [fork.text() for fork in s.fork(2)],
    "join": lambda s: s.fork(2).join(),
    "concatenate": lambda s: s.fork(2).join("concate_and_append"),
    "copy": lambda s: s.copy().__enter__().text(),
    "sync": lambda s: s.sync(),
    "error": lambda s: s.error(),
    "messages": lambda s: s.messages(),
    "text": lambda s: s.text(),
    "meta": lambda s: s.get_meta_info("a"),
    "read": lambda s: s["a"],
    "read what comes later": lambda s: s.__iadd__(sgl.gen("b"))["b"],
}


@pytest.mark.parametrize("what", AFTERWARDS)
def test_after_a_failed_node_was_processed_everything_returns(backend, what):
    @sgl.function
    def program(s):
        s += "BAD " + sgl.gen("a")
        s.error()  # now it has been processed
        try:
            AFTERWARDS[what](s)
        except ProgramError as error:
            assert isinstance(error.__cause__, OSError)
        return "ended"

    state = ends(lambda: program.run(backend=backend))
    assert state.ret_value == "ended" and isinstance(ends(state.error).__cause__, OSError)


def test_one_failing_item_does_not_take_the_batch_with_it(backend):
    @sgl.function
    def program(s, word):
        s += word + " " + sgl.gen("a")
        s += " again " + s["a"] + sgl.gen("b")

    items = [{"word": word} for word in ("good", "BAD", "fine")]
    for threads in (1, 3):
        states = ends(lambda n=threads: program.run_batch(items, backend=backend, num_threads=n))
        assert states[0]["b"] and states[2]["b"]
        with pytest.raises(ProgramError, match=r"test_lang_hangs\.py:\d+.*on fire"):
            states[1]["a"]
        errors = ends(
            lambda n=threads: program.run_batch(items, backend=backend, num_threads=n, return_exceptions=True)
        )
        assert isinstance(errors[1].__cause__, OSError)


@pytest.mark.parametrize("mode", ["gather_variable", "concate_and_append"])
def test_a_join_with_a_failed_child_ends(backend, mode):
    @sgl.function
    def program(s):
        s += "root "
        forks = s.fork(3)
        forks += lambda i: ("BAD " if i == 1 else "ok ") + sgl.gen("x")
        forks.join(mode)
        s += "end"
        return s.text()

    if mode == "gather_variable":
        state = ends(lambda: program.run(backend=backend))
        assert state.ret_value == "root end"
        with pytest.raises(ProgramError, match="on fire"):
            state["x"]
    else:
        with pytest.raises(ProgramError, match="on fire"):
            ends(lambda: program.run(backend=backend))


def test_concatenating_works_without_any_endpoint_for_it(backend):
    @sgl.function
    def program(s):
        s += "a "
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sgl.gen("x")
        forks.join("concate_and_append")
        s += sgl.gen("end")

    assert ends(lambda: program.run(backend=backend).text()) == "a 0<3>1<3><10>"


def test_a_loop_on_a_generated_value_cannot_be_traced_but_can_be_cached_and_batched(backend):
    turns = []

    @sgl.function
    def program(s, question):
        s += "A long introduction that every item of the batch shares, word for word, with the others. "
        s += question
        while True:
            s += sgl.gen("x")
            turns.append(1)
            if len(turns) % 3 == 0 and s["x"] != "Finish":
                return

    @sgl.function
    def endless(s):
        while s.fork and (s.__iadd__(sgl.gen("x")))["x"] != "Finish":
            pass

    ends(lambda: program.cache(backend))
    assert not turns, "only the constant start is looked at"
    ends(lambda: program.run_batch([{"question": "q"}] * 3, backend=backend))
    assert len(turns) == 9
    with pytest.raises(TraceError, match="loop"):
        ends(lambda: endless.trace())


def test_a_late_reader_misses_nothing_and_a_second_one_does_not_hang(backend):
    @sgl.function
    def program(s):
        with s.var_scope("all"):
            s += "one " + sgl.gen("a")

    state = program.run(backend=backend, stream=True)
    ends(state.sync)
    for _ in range(2):
        assert ends(lambda: "".join(state.text_iter())) == "one <4>"
        assert ends(lambda: "".join(state.text_iter("a"))) == "<4>"
        assert ends(lambda: "".join(state.text_iter("all"))) == "one <4>"


def test_reading_what_a_stream_never_makes_ends(backend):
    @sgl.function
    def program(s):
        s += "one " + sgl.gen("a")

    state = program.run(backend=backend, stream=True)
    for read in (lambda: state["b"], lambda: list(state.text_iter("b"))):
        with pytest.raises(KeyError, match="b"):
            ends(read)
    assert ends(lambda: state.get_meta_info("b")) is None


def test_errors_of_a_streaming_body_reach_its_readers(backend):
    @sgl.function
    def program(s):
        s += "one "
        raise LookupError("in the body")

    state = program.run(backend=backend, stream=True)
    assert isinstance(ends(state.error), LookupError)
    with pytest.raises(LookupError, match="in the body"):
        ends(lambda: list(state.text_iter()))
    with pytest.raises(ProgramError, match="LookupError: in the body; so variable 'x' was never made"):
        ends(lambda: state["x"])


def test_streaming_without_a_thread_ends(backend):
    @sgl.function
    def program(s):
        s += "one " + sgl.gen("a")

    state = program.run(backend=backend, stream=True, use_thread=False)
    assert ends(lambda: "".join(state.text_iter())) == "one <4>"


def test_appending_to_an_ended_state_raises(backend):
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += "x" + sgl.gen("a")
        forks.join()
        return forks

    state = ends(lambda: program.run(backend=backend))
    for late in (state, state.ret_value[0]):
        for append in (lambda s=late: s.__iadd__("more"), lambda s=late: s.user("more"), lambda s=late: s.fork(1)):
            with pytest.raises(StateEndedError, match="ended"):
                ends(append)
        assert ends(late.text) is not None


def test_forks_of_nothing_and_of_an_empty_text_end(backend):
    @sgl.function
    def program(s):
        s.fork(0).join()
        forks = s.fork(2)
        forks += sgl.gen("a")
        forks.join()
        s += "end"

    state = ends(lambda: program.run(backend=backend))
    assert state["a"] == ["<0>", "<0>"] and state.text() == "end"


def test_a_backend_that_fails_when_it_is_opened_ends(backend):
    class Broken(RuleBackend):
        def open(self):
            raise OSError("no connection")

    with pytest.raises(OSError, match="no connection"):
        ends(lambda: fails.run(backend=Broken()))
    results = ends(lambda: fails.run_batch([{}, {}], backend=Broken(), return_exceptions=True))
    assert all(isinstance(error, OSError) for error in results)


def test_a_backend_that_calls_back_twice_or_never_is_bounded_by_the_timeout(backend):
    backend.gate.clear()
    try:
        state = fails.run(backend=backend, timeout=0.2)
        with pytest.raises(ProgramError, match=r"0\.2 s"):
            ends(lambda: state["a"])
    finally:
        backend.gate.set()

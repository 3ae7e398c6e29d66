"""API speculation: fewer calls, the same texts."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from api_toy import TOKENIZER, natural_token
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_server import OpenAIServer

import sgl
from sgl.lang.backend import GenRequest
from sgl.lang.backends.apis.api_response import StopStringCutter, first_stop
from sgl.lang.backends.openai.openai_backend import OpenAI
from sgl.lang.backends.speculation.turn_speculation import FormatError, TurnFuture, TurnSlot, match
from sgl.lang.errors import BadValueError, ProgramError
from sgl.lang.sampling.options import DEFAULTS, make_options


@pytest.fixture(scope="module")
def server():
    with OpenAIServer(compatible=True) as running:
        yield running


@pytest.fixture(autouse=True)
def clean(server):
    server.reset()


@pytest.fixture(scope="module")
def text_model(server):
    backend = OpenAI("davinci-002", base_url=server.base_url, timeout=20, backoff=0.01, tokenizer=TOKENIZER)
    yield backend
    backend.shutdown()


@pytest.fixture(scope="module")
def chat_model(server):
    backend = OpenAI("gpt-4o", base_url=server.base_url, timeout=20, backoff=0.01)
    yield backend
    backend.shutdown()


LINES = "Ada\nmaths\nLondon\nand so on and on"


def fill(s, third="\n"):
    s += "Name: " + sgl.gen("name", stop="\n") + "\n" + sgl.gen("field", stop="\n") + third
    s += sgl.gen("city", stop="\n")


def speculating(body, tokens=40):
    return sgl.function(body, num_api_spec_tokens=tokens)


# --- text completions ------------------------------------------------------------------------------------


def test_one_call_where_the_literals_match(server, text_model):
    server.script = lambda prompt, body: LINES
    state = speculating(fill).run(backend=text_model)
    assert state.text() == "Name: Ada\nmaths\nLondon"
    assert len(server.requests) == 1
    assert server.requests[0]["max_tokens"] == 128 and "stop" not in server.requests[0]
    metas = [state.get_meta_info(name) for name in ("name", "field", "city")]
    assert [meta["speculated"] for meta in metas] == [False, True, True]
    assert [meta["completion_tokens"] for meta in metas] == [1, 1, 1]
    assert [meta["finish_reason"] for meta in metas] == [{"type": "stop", "matched": "\n"}] * 3
    assert metas[0]["prompt_tokens"] == server.usage[0] and metas[1]["prompt_tokens"] == 0


def test_a_literal_that_differs_costs_a_call(server, text_model):
    server.script = lambda prompt, body: LINES

    @sgl.function(num_api_spec_tokens=40)
    def program(s):
        fill(s, "; city: ")

    state = program.run(backend=text_model)
    assert state.text() == "Name: Ada\nmaths; city: Ada" and len(server.requests) == 2


def test_without_speculation_each_gen_is_a_call(server, text_model):
    server.script = lambda prompt, body: LINES[max(0, len(prompt) - 6) :]
    assert sgl.function(fill).run(backend=text_model).text() == "Name: Ada\nmaths\nLondon"
    assert len(server.requests) == 3


PIECES = st.one_of(
    st.sampled_from(["\n", ",", " ", "ab", "x", ", ", "a"]).map(lambda text: ("text", text)),
    st.tuples(
        st.just("gen"),
        st.integers(1, 9),
        st.sampled_from([(), ("\n",), (",",), (" ", "\n"), (".", ","), ("\n", ", ")]),
    ),
    st.just(("natural",)),
)


def program_of(pieces, tokens=None):
    """Literals and gens in this order; ("natural",) is a literal that the model would have written."""

    def body(s, start):
        s += start
        for index, piece in enumerate(pieces):
            if piece[0] == "text":
                s += piece[1]
            elif piece[0] == "natural":
                s += natural_token(s.text()) or "."
            else:
                s += sgl.gen(f"v{index}", piece[1], stop=list(piece[2]))

    return sgl.function(body, num_api_spec_tokens=tokens)


@settings(max_examples=25, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=8), st.sampled_from([1, 3, 12, 60]), st.text("abc,\n", max_size=6))
def test_texts_are_those_of_ordinary_calls(server, text_model, pieces, tokens, start):
    plain = program_of(pieces).run(start, backend=text_model, temperature=0)
    plain.sync()
    calls = len(server.requests)
    server.requests.clear()
    ahead = program_of(pieces, tokens).run(start, backend=text_model, temperature=0)
    assert ahead.text() == plain.text() and ahead.error() is None
    assert len(server.requests) <= calls
    for index, piece in enumerate(pieces):
        if piece[0] == "gen":
            name = f"v{index}"
            assert ahead[name] == plain[name]
            assert ahead.get_meta_info(name)["completion_tokens"] <= piece[1]
    server.requests.clear()


def test_tokens_are_counted_where_the_server_names_them(server, text_model):
    server.script = lambda prompt, body: "one two three four five"
    program = program_of([("gen", 3, ()), ("text", " "), ("gen", 3, ())], 20)
    assert program.run("", backend=text_model).text() == "one two three four"
    assert len(server.requests) == 1


def test_servers_that_name_no_tokens(server):
    backend = OpenAI("davinci-002", base_url=server.base_url)
    server.names_tokens = False
    server.script = lambda prompt, body: LINES
    assert speculating(fill).run(backend=backend).text() == "Name: Ada\nmaths\nLondon"
    assert speculating(fill).run(backend=backend).text() == "Name: Ada\nmaths\nLondon"
    assert ["logprobs" in body for body in server.requests] == [True, False, False]  # it asks once
    server.script = lambda prompt, body: "a b c d e f g h"
    state = program_of([("gen", 5, ()), ("gen", 3, ())], 20).run("", backend=backend)
    assert state.text() == "a b c d " and len(server.requests) == 4  # tokens of about the same length
    backend.shutdown()


def test_other_options_make_a_call_of_their_own(server, text_model):
    @sgl.function(num_api_spec_tokens=30)
    def program(s):
        s += "x" + sgl.gen("a", 3, temperature=0) + sgl.gen("b", 3, temperature=0.5) + sgl.gen("c", dtype=int)

    server.script = lambda prompt, body: "1 2 3 4 5 6 7"
    assert program.run(backend=text_model).text() == "x1 21 21"
    assert len(server.requests) == 3
    assert "logprobs" not in server.requests[2]  # a constrained gen is an ordinary call


def test_forks_share_no_speculated_text(server, text_model):
    @sgl.function(num_api_spec_tokens=30)
    def program(s):
        s += "x" + sgl.gen("a", stop="\n") + "\n"
        forks = s.fork(2)
        forks += sgl.gen("b", 2)
        forks.join()
        s += sgl.gen("c", stop="\n")

    server.script = lambda prompt, body: LINES
    state = program.run(backend=text_model)
    assert (state["a"], state["c"]) == ("Ada", "maths") and state["b"] == ["Ada\n"] * 2
    assert len(server.requests) == 3


def test_concurrent_programs_do_not_mix(server, text_model):
    program = program_of([("gen", 9, ("\n",)), ("natural",), ("gen", 9, (",",)), ("natural",), ("gen", 5, ())], 50)
    plain = program_of([("gen", 9, ("\n",)), ("natural",), ("gen", 9, (",",)), ("natural",), ("gen", 5, ())])
    starts = [{"start": f"topic {index}:"} for index in range(30)]
    ahead = [state.text() for state in program.run_batch(starts, backend=text_model, temperature=0)]
    assert ahead == [state.text() for state in plain.run_batch(starts, backend=text_model, temperature=0)]


def test_streaming_readers_get_the_whole(server, text_model):
    server.script = lambda prompt, body: LINES
    state = speculating(fill).run(backend=text_model, stream=True)
    assert "".join(state.text_iter()) == "Name: Ada\nmaths\nLondon" and len(server.requests) == 1


def test_a_failed_call_names_the_line(server, text_model):
    server.script = lambda prompt, body: 1 / 0
    state = speculating(fill).run(backend=OpenAI("davinci-002", base_url=server.base_url, retries=0))
    with pytest.raises(ProgramError, match=r"test_api_speculation.py:\d+: Gen\('name'\) failed.*500"):
        state["city"]


def test_the_number_of_tokens_is_checked(text_model):
    with pytest.raises(BadValueError, match="num_api_spec_tokens is -1"):
        speculating(fill, -1).run(backend=text_model)


# --- chat ------------------------------------------------------------------------------------------------


def form(s, **options):
    s += sgl.system("Answer as: Name: ...\nJob: ...\n")
    s += sgl.user("Who?")
    with s.assistant():
        s += "Name: " + sgl.gen("name", stop="\n", **options) + "\nJob: " + sgl.gen("job", stop=".", **options) + "."
    s += sgl.user("Thanks.")


def test_a_turn_is_one_call(server, chat_model):
    server.script = lambda prompt, body: "Name: Ada\nJob: maths. And more"
    state = speculating(form).run(backend=chat_model)
    assert (state["name"], state["job"]) == ("Ada", "maths")
    assert state.messages()[2] == {"role": "assistant", "content": "Name: Ada\nJob: maths."}
    assert len(server.requests) == 1
    assert server.requests[0]["max_tokens"] == 40 and "stop" not in server.requests[0]
    assert state.get_meta_info("name")["finish_reason"] == {"type": "stop", "matched": "\n"}
    assert (server.usage[1], state.get_meta_info("job")["completion_tokens"]) == (
        state.get_meta_info("name")["completion_tokens"],
        0,
    )


def test_without_speculation_two_gens_in_a_turn_are_an_error_that_helps(server, chat_model):
    state = sgl.function(form).run(backend=chat_model)
    with pytest.raises(ProgramError, match=r"text already: 'Name: '.*num_api_spec_tokens"):
        state["name"]
    assert not server.requests


def test_a_wrong_answer_is_tried_again(server, chat_model):
    answers = iter(["I am Ada.", "Name: Ada, Job: maths", "Name: Ada\nJob: maths"])
    server.script = lambda prompt, body: next(answers)
    state = speculating(form).run(backend=chat_model)
    assert (state["name"], state["job"]) == ("Ada", "maths") and len(server.requests) == 3


def test_an_answer_without_the_format_is_shown(server, chat_model):
    server.script = lambda prompt, body: "I am Ada, and I do maths."
    state = speculating(form).run(backend=chat_model)
    with pytest.raises(ProgramError) as caught:
        state["job"]
    message = str(caught.value)
    assert "'Name: ' + gen('name') + '\\nJob: ' + gen('job') + '.'" in message
    assert "'I am Ada, and I do maths.'" in message and "test_api_speculation.py:" in message
    assert len(server.requests) == 3 and state.error() is not None


def test_reading_inside_the_turn_is_an_error_not_a_deadlock(server, chat_model):
    @sgl.function(num_api_spec_tokens=20)
    def program(s):
        s += sgl.user("Who?")
        with s.assistant():
            s += sgl.gen("a", stop="\n") + "\n"
            if s["a"]:
                s += sgl.gen("b")

    with pytest.raises(ProgramError, match="'a' was read inside its assistant turn"):
        program.run(backend=chat_model)
    assert not server.requests


def test_awaiting_inside_the_turn_is_an_error_too(server, chat_model):
    @sgl.function(num_api_spec_tokens=20)
    async def program(s):
        s += sgl.user("Who?") + sgl.assistant_begin() + "Name: " + sgl.gen("a", stop="\n") + "\n"
        await s.get("a")

    with pytest.raises(ProgramError, match="'a' was read inside its assistant turn"):
        asyncio.run(asyncio.wait_for(program.arun(backend=chat_model), 5))
    assert not server.requests


def test_waiting_for_every_node_is_an_error_too(chat_model):
    with pytest.raises(ProgramError, match="'name' was read inside its assistant turn"):
        speculating(form).run(backend=chat_model, use_thread=False)


def test_readers_of_a_streaming_run_wait_for_the_turn(server, chat_model):
    server.script = lambda prompt, body: "Name: Ada\nJob: maths."
    go_on = threading.Event()

    @sgl.function(num_api_spec_tokens=20)
    def program(s):
        s += sgl.user("Who?")
        with s.assistant():
            s += "Name: " + sgl.gen("name", stop="\n")
            go_on.wait(5)
            s += "\nJob: " + sgl.gen("job", stop=".")

    state = program.run(backend=chat_model, stream=True)
    threading.Timer(0.05, go_on.set).start()
    assert state["name"] == "Ada" and state["job"] == "maths"


def test_a_turn_that_is_never_ended_ends_with_the_program(server, chat_model):
    @sgl.function(num_api_spec_tokens=20)
    def program(s):
        s += sgl.user("Who?") + sgl.assistant_begin() + "Name: " + sgl.gen("name", stop="\n")

    server.script = lambda prompt, body: "Name: Ada\n"
    assert program.run(backend=chat_model)["name"] == "Ada"


@pytest.mark.parametrize("second", [{"temperature": 0.5}, {"json_schema": {"type": "object"}}])
def test_gens_of_one_turn_must_agree(server, chat_model, second):
    @sgl.function(num_api_spec_tokens=20)
    def program(s):
        s += sgl.user("Who?")
        s += sgl.assistant(sgl.gen("a", stop="\n") + "\n" + sgl.gen("b", **second))

    with pytest.raises(ProgramError, match=r"gen\('b'\) has other options than gen\('a'\)"):
        program.run(backend=chat_model)
    assert not server.requests


def test_gens_that_cannot_be_part_of_a_turn(server, chat_model):
    @sgl.function(num_api_spec_tokens=20)
    def constrained(s):
        s += sgl.user("Who?")
        s += sgl.assistant("Name: " + sgl.gen("a", json_schema={"type": "object"}))

    with pytest.raises(ProgramError, match="json_schema, which holds for a whole answer"):
        constrained.run(backend=chat_model)

    @sgl.function(num_api_spec_tokens=20)
    def touching(s):
        s += sgl.user("Who?")
        s += sgl.assistant(sgl.gen("a") + sgl.gen("b"))

    with pytest.raises(ProgramError, match=r"nothing separates it from gen\('b'\)"):
        touching.run(backend=chat_model)
    assert not server.requests


def test_a_turn_of_one_gen_is_an_ordinary_call(server, chat_model):
    @sgl.function(num_api_spec_tokens=20)
    def program(s):
        s += sgl.user("Who?") + sgl.assistant(sgl.gen("a", 5, stop="\n") + "!") + sgl.user("And?")
        s += sgl.assistant(sgl.gen("b", 5, n=2))

    server.script = lambda prompt, body: "Ada\nBob"
    state = program.run(backend=chat_model)
    assert state["a"] == "Ada" and state["b"] == ["Ada\nBob"] * 2
    assert state.messages()[1]["content"] == "Ada!"
    assert [(body["max_tokens"], body.get("stop")) for body in server.requests] == [
        (5, ["\n"]),
        (5, None),
        (5, None),
    ]


def test_forks_inside_a_turn(server, chat_model):
    @sgl.function(num_api_spec_tokens=20)
    def early(s):
        s += sgl.user("Who?") + sgl.assistant_begin()
        forks = s.fork(2)
        forks += sgl.gen("a") + sgl.assistant_end()
        forks.join()

    server.script = lambda prompt, body: "Ada"
    assert early.run(backend=chat_model)["a"] == ["Ada", "Ada"]

    @sgl.function(num_api_spec_tokens=20)
    def late(s):
        s += sgl.user("Who?") + sgl.assistant_begin() + sgl.gen("a")
        s.fork(2)

    with pytest.raises(Exception, match="fork inside an assistant turn"):
        late.run(backend=chat_model)


def test_a_server_that_goes_on_gets_what_the_turn_begins_with(server):
    backend = OpenAI("gpt-4o", base_url=server.base_url, prefill=True)
    server.script = lambda prompt, body: "Ada\nJob: maths."
    state = speculating(form).run(backend=backend)
    assert (state["name"], state["job"]) == ("Ada", "maths")
    assert server.requests[-1]["messages"][-1] == {"role": "assistant", "content": "Name: "}
    backend.shutdown()


def test_cancelling_ends_an_open_turn(server, chat_model):
    inside = threading.Event()
    held = []

    @sgl.function(num_api_spec_tokens=20)
    def program(s):
        held.append(s)
        s += sgl.user("Who?") + sgl.assistant_begin() + sgl.gen("a", stop="\n") + "\n"
        inside.set()
        time.sleep(0.2)
        s += sgl.gen("b")

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(program.run, backend=chat_model)
        assert inside.wait(5)
        held[0].cancel()
        with pytest.raises(ProgramError):
            running.result(5)["a"]
    assert not server.requests


def test_concurrent_chats_do_not_mix(server, chat_model):
    server.script = lambda prompt, body: f"Name: {body['messages'][1]['content']}\nJob: j{len(prompt)}."

    @sgl.function(num_api_spec_tokens=40)
    def program(s, name):
        s += sgl.system("x") + sgl.user(name)
        s += sgl.assistant("Name: " + sgl.gen("a", stop="\n") + "\nJob: " + sgl.gen("b", stop="."))

    states = program.run_batch([{"name": f"n{index}"} for index in range(80)], backend=chat_model)
    assert [state["a"] for state in states] == [f"n{index}" for index in range(80)]
    assert len(server.requests) == 80


# --- cutting ---------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=3), max_size=3),
)
def test_the_cutter_of_pieces_cuts_as_one_that_sees_the_text_grow(pieces, stops):
    cutter, whole = StopStringCutter(stops), "".join(pieces)
    shown = "".join(cutter.push(char) for char in whole) + cutter.rest()
    expected = next((cut for n in range(len(whole) + 1) if (cut := first_stop(whole[:n], stops))), None)
    assert shown == cutter.text == (whole if expected is None else whole[: expected[0]])
    assert cutter.matched == (expected and expected[1])


# --- matching ------------------------------------------------------------------------------------------

SEPARATORS = ("\n", "|", "; ", ".\n")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.text("xy \n", max_size=5), st.sampled_from(SEPARATORS), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["", "Name: ", " \nName: "]),
    st.text("xy ", max_size=4),
    st.sampled_from(["", " \n"]),
)
def test_an_answer_is_taken_apart_as_it_was_put_together(parts, first, last, space):
    """Gens whose texts hold no separator, between literals that begin with one."""
    elements, answer, texts = [first] if first else [], first.lstrip(), []
    for text, separator, stopped in parts:
        text = text.replace("\n", "") if "\n" in separator else text
        elements += [slot(separator if stopped else ()), f"{separator}K: "]
        answer += f"{text}{separator}K: "
        texts.append((text, separator if stopped else None))
    elements.append(slot(()))
    assert match(elements, (space if first else "") + answer + last) == [*texts, (last, None)]


def slot(stop):
    request = GenRequest(make_options(stop=stop).over(DEFAULTS), name="x")
    return TurnSlot(request, None, TurnFuture(None))


def test_what_does_not_match_is_told():
    elements = ["Name: ", slot("\n"), "\nJob: ", slot(".")]
    for answer, message in (
        ("Name Ada\nJob: maths.", "at character 0 stands 'Name Ada\\\\nJob: maths.' instead of 'Name: '"),
        ("Name: Ada", "nothing ends gen\\('x'\\): no '\\\\n' after character 6"),
        ("Name: Ada\nWork: maths.", "at character 9 stands '\\\\nWork: maths.' instead of '\\\\nJob: '"),
    ):
        with pytest.raises(FormatError) as caught:
            match(elements, answer)
        assert re.search(message, str(caught.value))
    assert match(elements, "Name: Ada\nJob: maths") == [("Ada", "\n"), ("maths", None)]

"""An agent on the bundled model: it selects a tool, writes its arguments under their schema, and uses the answer."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from alone import alone

import sgl
from sgl import tools
from sgl.lang import journal
from sgl.lang.errors import ProgramCancelled
from sgl.lang.tools import ToolCall, ToolCalls
from sgl.runtime.nano import nano_prompts

CONTACTS = {"maria": "+49 30 5550 143", "john": "+1 415 555 0199"}


def calculator(expression: str):
    """Compute an arithmetic expression"""
    left, sign, right = expression.split()
    return {"result": int(left) * int(right) if sign == "*" else int(left) + int(right)}


def find_contact(name: str):
    """Find the phone number of a contact"""
    return {"name": name, "phone": CONTACTS[name.lower()]}


async def add_todo(task: str):
    """Add a task to the to-do list"""
    return {"task": task, "open_tasks": 1}


BOX = tools([calculator, find_contact, add_todo])
QUESTIONS = [
    ("What is 12 * 7?", "84"),
    ("What is Maria's phone number?", "5550 143"),
    ("Remind me to buy milk.", "buy milk"),
]


@pytest.fixture(scope="module")
def engine():
    with sgl.Engine() as made:
        yield made


@sgl.function
def agent(s, question, box=BOX, most=3):
    s += box
    s += sgl.user(question)
    for _ in range(most):
        s += sgl.assistant(box.call("step", max_tokens=60))
        for call in s.get("step"):
            s += sgl.tool(box.run(call))
        if not s.get("step"):
            return s.get("step").text


@pytest.mark.parametrize(("question", "part"), QUESTIONS)
def test_the_agent_uses_its_tools(engine, question, part):
    state = agent.run(question, backend=engine, temperature=0)
    assert part in state.ret_value
    roles = [message["role"] for message in state.messages()]
    assert roles == ["system", "user", "assistant", "assistant", "tool", "assistant", "assistant"]
    assert state["step_tool"] == nano_prompts.ANSWER and state.error() is None


@pytest.mark.parametrize(("question", "part"), QUESTIONS)
def test_an_agent_in_one_line(engine, question, part):
    assert part in BOX.loop(question, temperature=0, backend=engine).ret_value


def test_the_words_are_those_the_model_was_trained_on(engine):
    state = agent.run("What is 12 * 7?", backend=engine, temperature=0)
    fields = {"calculator": "expression", "find_contact": "name", "add_todo": "task"}
    described = [
        nano_prompts.PromptTool(t.name, t.description, (nano_prompts.PromptField(fields[t.name]),))
        for t in BOX.tools.values()
    ]
    talk = [
        nano_prompts.tools_system(described),
        nano_prompts.message("user", "What is 12 * 7?"),
        *nano_prompts.tool_call("calculator", {"expression": "12 * 7"}),
        nano_prompts.tool_result({"result": 84}),
        *nano_prompts.tool_answer(state.ret_value),
    ]
    assert state.text() == nano_prompts.render(talk)


def test_the_same_turns_written_by_hand_give_the_same(engine):
    @sgl.function
    def by_hand(s, question):
        s += BOX
        s += sgl.user(question)
        s += sgl.assistant(sgl.select("tool", [*BOX.tools, nano_prompts.ANSWER]))
        schema = BOX.tools[s["tool"]].arguments_schema
        s += sgl.assistant(sgl.gen("arguments", max_tokens=60, json_schema=schema))

    for question, _ in QUESTIONS:
        hand, ours = (program.run(question, backend=engine, temperature=0) for program in (by_hand, one_step))
        assert ours.text() == hand.text()
        assert [call.name for call in ours.get("step")] == [hand["tool"]]


@sgl.function
def one_step(s, question, choice="auto", heat=None):
    s += BOX
    s += sgl.user(question)
    s += sgl.assistant(BOX.call("step", choice, max_tokens=60, temperature=heat))


@pytest.mark.parametrize("choice", ["required", "calculator", "find_contact"])
def test_any_temperature_gives_calls_that_fit(engine, choice):
    items = [{"question": "hello", "choice": choice, "heat": 2.0} for _ in range(6)]
    for state in one_step.run_batch(items, backend=engine, seed=5):
        (call,) = state.get("step")
        assert choice in ("required", call.name)
        BOX.tools[call.name].check(call.arguments)


@pytest.mark.whole
@alone
def test_appending_a_step_does_not_wait(engine):
    """In one thread: the second operation depends on the first, and the loop goes on meanwhile."""

    @sgl.function
    async def busy(s, question):
        s += BOX
        s += sgl.user(question)
        s += sgl.assistant(BOX.call("step", max_tokens=60))
        step = await s.get("step")
        for call in step:
            s += sgl.tool(await BOX.arun(call))
        s += sgl.assistant(BOX.call("done", max_tokens=60))
        return (await s.get("done")).text

    async def main():
        runs = [busy.arun(question, backend=engine, temperature=0) for question, _ in QUESTIONS]
        return [state.ret_value for state in await asyncio.gather(*runs)]

    before = threading.active_count()
    answers = asyncio.run(main())
    assert all(part in answer for answer, (_, part) in zip(answers, QUESTIONS, strict=True)), answers
    assert threading.active_count() <= before + 8


def test_forks_go_on_from_a_step(engine):
    @sgl.function
    def forked(s):
        s += BOX
        s += sgl.user("What is 12 * 7?")
        s += sgl.assistant(BOX.call("step", max_tokens=60))
        children = s.fork(2)
        for child in children:
            child += sgl.tool({"result": 84})
            child += sgl.assistant(BOX.call("answer", max_tokens=40))
        return [child.get("answer") for child in children]

    answers = forked.run(backend=engine, temperature=0).ret_value
    assert answers[0] == answers[1] and "84" in answers[0].text
    engine.check()


def test_other_formats_are_constrained_on_any_model(engine):
    for format in ("hermes", "llama", "pythonic", "mistral"):
        box = tools([calculator, find_contact], format=format)

        @sgl.function
        def force(s, box):
            s += sgl.assistant(box.call("step", "find_contact", max_tokens=80))

        step = force.run(box, backend=engine, temperature=1.0, seed=2, close_at_limit=True).get("step")
        assert isinstance(step, ToolCalls) and isinstance(step.calls[0], ToolCall)
        assert [call.name for call in step] == ["find_contact"] and set(step.calls[0].arguments) == {"name"}


def test_streaming_shows_every_turn(engine):
    state = one_step.run("What is 12 * 7?", backend=engine, temperature=0, stream=True)
    assert "".join(state.text_iter()) == state.text()
    assert "".join(state.text_iter("step")) == state["step"]


def test_a_compiled_program_calls_the_same(engine):
    plain = one_step.run("What is 12 * 7?", backend=engine, temperature=0)
    compiled = one_step.compile(backend=engine, choice="auto", heat=None)
    state = compiled.run(question="What is 12 * 7?", backend=engine, temperature=0)
    assert state.text() == plain.text() and state.get("step") == plain.get("step")


def test_a_recorded_agent_is_replayed_without_the_model(engine, tmp_path):
    recorded = agent.run(QUESTIONS[0][0], backend=journal.record(tmp_path / "run.jsonl", engine), temperature=0)
    text = recorded.text()
    replayed = agent.run(QUESTIONS[0][0], backend=journal.replay(tmp_path / "run.jsonl"), temperature=0)
    assert (replayed.text(), replayed.ret_value) == (text, recorded.ret_value)


def test_what_a_tool_did_is_not_done_again_by_a_replay(engine, tmp_path):
    done = []

    def run(call):
        done.append(call.name)
        return BOX.run(call)

    @sgl.function
    def careful(s, question):
        s += BOX
        s += sgl.user(question)
        s += sgl.assistant(BOX.call("step", max_tokens=60))
        (call,) = s.get("step")
        (child,) = s.fork(1)
        child += sgl.tool(sgl.once(child, "in a fork", run, call))
        s += sgl.tool(sgl.once(s, "run", run, call))
        s += sgl.assistant(BOX.call("answer", max_tokens=60))
        return s.get("answer").text, child.text()

    def answer(backend):
        return careful.run(QUESTIONS[0][0], backend=backend, temperature=0).ret_value

    plain = answer(engine)
    recorded = answer(journal.record(tmp_path / "run.jsonl", engine))
    replayed = answer(journal.replay(tmp_path / "run.jsonl"))
    assert plain == recorded == replayed
    assert done == ["calculator"] * 4  # two of the plain run, two of the recorded one


def test_a_cancelled_step_fails_and_gives_its_pages_back(engine):
    for delay in (0, 0.002, 0.01, 0.03):
        state = one_step.run("What is 12 * 7?", "required", backend=engine, temperature=0)
        time.sleep(delay)
        state.cancel("enough")
        try:
            assert state.get("step")
        except ProgramCancelled as error:
            assert "enough" in str(error)
    engine.check()


def price(article: str) -> float:
    """The price of one piece of an article"""
    return {"rake": 19.5, "hose": 31.0}[article]


def test_the_loop_tells_a_lone_number_as_an_object(engine):
    state = tools([price]).loop("What is the price of a hose?", temperature=0, backend=engine)
    assert state.messages()[4] == {"role": "tool", "content": '{"result": 31.0}'} and "31" in state.ret_value

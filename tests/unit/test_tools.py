"""Tools: their schemas, what a program writes and reads, and how they are run."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
from typing import Annotated, Any

import pytest
from grammar_walks import WalkBackend
from pydantic import BaseModel, Field, ValidationError

import sgl
from sgl import tools
from sgl.lang.errors import BadValueError, ProgramError, UnsupportedByBackendError
from sgl.lang.tools import ToolCall, ToolCalls
from sgl.lang.tools.python_tool import read_docstring, tool_of


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


@dataclasses.dataclass
class Place:
    city: str
    country: str = "IT"


def weather(place: Place, days: int = 1, unit: Unit = Unit.C) -> dict[str, Any]:
    """The weather of a place.

    Second line.

    Args:
        place (Place): where it is
        days: how many days
            ahead
    Returns:
        a dict
    """
    return {"city": place.city, "days": days, "unit": unit.value}


async def slow(question: str) -> str:
    """Search."""
    await asyncio.sleep(0)
    return question.upper()


class Booking(BaseModel):
    """A table."""

    guests: int = Field(gt=0, lt=10)
    name: str


SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
}


def test_functions_models_and_dicts_become_tools():
    tool = tool_of(weather)
    assert (tool.name, tool.description) == ("weather", "The weather of a place.\n\nSecond line.")
    properties = tool.parameters["properties"]
    assert list(properties) == ["place", "days", "unit"] and tool.parameters["required"] == ["place"]
    assert properties["days"] == {"type": "integer", "description": "how many days ahead", "default": 1}
    assert tool_of(Booking).description == "A table." and list(tool_of(Booking).parameters["properties"]) == [
        "guests",
        "name",
    ]
    assert tool_of(SEARCH).openai == SEARCH
    assert tool_of({"name": "a", "input_schema": {"type": "object"}}).parameters == {"type": "object"}


def test_methods_partials_and_callable_objects():
    class Box:
        def put(self, item: str) -> str:
            return item

        def __call__(self, number: int) -> int:
            return number

    assert list(tool_of(Box().put).parameters["properties"]) == ["item"]
    assert (tool_of(Box()).name, list(tool_of(Box()).parameters["properties"])) == ("Box", ["number"])
    part = functools.partial(weather, days=2)
    part.__name__ = "weather_soon"
    assert tool_of(part).name == "weather_soon"


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("Do.\n\n:param a: the a\n:param int b: the b\n:returns: c", {"a": "the a", "b": "the b"}),
        ("Do.\n\nParameters:\n  a (int): x: y\n  **b: z\n\nRaises:\n  E: no", {"a": "x: y", "b": "z"}),
        ("Do: it.\nNote: nothing", {}),
    ],
)
def test_docstrings(text, notes):
    assert read_docstring(text)[1] == notes and read_docstring(text)[0].startswith("Do")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "3 is not a tool"),
        ({"type": "function"}, "has no name"),
        ({"name": "two words"}, "'two words'"),
        (lambda *rest: rest, "takes"),
        (lambda **rest: rest, "takes"),
    ],
)
def test_what_is_no_tool_is_refused(source, message):
    with pytest.raises(BadValueError, match=message):
        tools([source])


def test_empty_and_double_toolboxes_are_refused():
    with pytest.raises(BadValueError, match="no tools"):
        tools([])
    with pytest.raises(BadValueError, match="two tools have the name 'weather'"):
        tools([weather, weather])
    for single in (weather, SEARCH, "weather"):
        with pytest.raises(BadValueError, match="give a list"):
            tools(single)


# --- running ---------------------------------------------------------------------------------------------------


def test_run_checks_the_arguments():
    box = tools([weather, slow, SEARCH, Booking])
    call = ToolCall("weather", {"place": {"city": "Rome"}, "unit": "celsius"})
    assert box.run(call) == {"city": "Rome", "days": 1, "unit": "celsius"}
    assert box.run(ToolCall("slow", {"question": "x"})) == "X"
    assert box.run(ToolCall("Booking", {"guests": 2, "name": "Ann"})) == Booking(guests=2, name="Ann")
    assert "place" in box.run(ToolCall("weather", {}))["error"]
    wrong = box.run(ToolCall("weather", {"place": {}, "plase": 1}))["error"]
    assert wrong == "place.city: Field required; plase: Extra inputs are not permitted"
    assert "no tool 'wether'; did you mean 'weather'" in box.run(ToolCall("wether", {}))["error"]
    assert "no function" in box.run(ToolCall("search", {"q": "x"}))["error"]
    with pytest.raises(ValidationError):
        box.run(ToolCall("weather", {}), raise_errors=True)


def test_errors_of_the_function_are_answers():
    def fail(x: int):
        raise OverflowError("too much")

    assert tools([fail]).run(ToolCall("fail", {"x": 1})) == {"error": "too much"}
    with pytest.raises(OverflowError):
        tools([fail]).run(ToolCall("fail", {"x": 1}), raise_errors=True)


def test_arun():
    async def main():
        box = tools([weather, slow])
        both = (
            box.arun(ToolCall("slow", {"question": "x"})),
            box.arun(ToolCall("weather", {"place": {"city": "Rome"}})),
        )
        return await asyncio.gather(*both)

    assert asyncio.run(main()) == ["X", {"city": "Rome", "days": 1, "unit": "celsius"}]


# --- programs --------------------------------------------------------------------------------------------------


@sgl.function
def ask(s, box, choice="auto", question="Rain?"):
    s += sgl.system("Be brief.\n" + box)
    s += sgl.user(question)
    s += sgl.assistant(box.call("step", choice=choice))
    for call in s.get("step"):
        s += sgl.tool(box.run(call))
    s += sgl.assistant(sgl.gen("answer"))


CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": {"city": "Rome"}}}\n</tool_call>'


def test_a_program_with_tools():
    state = ask.run(tools([weather, SEARCH]), backend=WalkBackend(name="qwen", script=["I look.\n" + CALL, "Rain."]))
    call = ToolCall("weather", {"place": {"city": "Rome"}}, "call_0")
    assert state.get("step") == ToolCalls("I look.", [call]) and state["step"].endswith("</tool_call>")
    messages = state.messages()
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[0]["content"].startswith("Be brief.\n# Tools") and '"name": "search"' in messages[0]["content"]
    assert messages[3]["content"] == '{"city": "Rome", "days": 1, "unit": "celsius"}'


def test_a_toolbox_alone_is_a_system_turn():
    @sgl.function
    def bare(s, box):
        s += box
        s += sgl.user("Hello")

    messages = bare.run(tools([SEARCH], format="llama"), backend=WalkBackend()).messages()
    assert [message["role"] for message in messages] == ["system", "user"] and "search" in messages[0]["content"]


def test_an_answer_without_calls():
    state = ask.run(tools([weather]), backend=WalkBackend(name="qwen", script=["No rain.", "Done."]))
    assert not state.get("step") and state.get("step").text == "No rain."


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral", "pythonic"])
@pytest.mark.parametrize("choice", ["required", "weather"])
def test_required_calls_come_and_run(name, choice):
    box = tools([weather, slow], format=name)
    for seed in range(3):
        state = ask.run(box, choice, backend=WalkBackend(seed))
        step = state.get("step")
        assert step and (choice == "required" or [call.name for call in step] == ["weather"])
        assert all("error" not in box.run(call) for call in step)


def test_mistral_goes_on_behind_its_special_token():
    box = tools([weather], format="mistral")
    listed = '[{"name": "weather", "arguments": {"place": {"city": "Rome"}}}]'
    backend = WalkBackend(script=["I look.[TOOL_CALLS] is a token", listed, "Rain."])
    state = ask.run(box, backend=backend)
    assert state.get("step") == ToolCalls("I look.", [ToolCall("weather", {"place": {"city": "Rome"}}, "call_0")])
    assert state.text().count("I look.[TOOL_CALLS]" + listed) == 1 and state["step_text"] == "I look."
    assert backend.prompts[1].endswith("I look.[TOOL_CALLS]")
    quiet = ask.run(box, backend=WalkBackend(script=["No rain.", "Done."]))
    assert quiet.get("step") == ToolCalls("No rain.") and quiet["step"] == ""


def test_a_gated_state_forks_and_fails_like_any_other():
    box = tools([weather], format="mistral")

    @sgl.function
    def forked(s):
        s += sgl.assistant(box.call("step"))
        children = s.fork(2)
        for child in children:
            child += sgl.assistant(sgl.gen("more"))
        children.join()

    state = forked.run(backend=WalkBackend(script=["a", "b", "c"]))
    assert state["more"] == ["b", "c"] and state.get("step").text == "a"

    with pytest.raises(ProgramError, match=r"'.not a call.' is not allowed here") as caught:
        ask.run(box, backend=WalkBackend(script=["x[TOOL_CALLS]", "[not a call]", "y"]))
    assert isinstance(caught.value.__cause__, AssertionError)


def test_streaming_through_a_continuation():
    box = tools([weather], format="mistral")
    listed = '[{"name": "weather", "arguments": {"place": {"city": "Rome"}}}]'
    state = ask.run(box, backend=WalkBackend(script=["I look.[TOOL_CALLS]", listed, "Rain."]), stream=True)
    assert "".join(state.text_iter()) == state.text()


def test_options_of_a_call():
    box = tools([weather])
    node = box.call("step", max_tokens=7, temperature=0.5)
    assert (node.sampling_params.max_new_tokens, node.sampling_params.temperature) == (7, 0.5)
    with pytest.raises(BadValueError, match="choice is 'wether', which is not a tool; did you mean 'weather'"):
        box.call("step", choice="wether")
    with pytest.raises(BadValueError, match="n is 2"):
        box.call("step", n=2)
    with pytest.raises(ProgramError, match="a gen has tools and regex"):
        ask_regex.run(box, backend=WalkBackend())


@sgl.function
def ask_regex(s, box):
    s += box.call("step", regex="a+")


def test_a_tool_that_cannot_be_enforced_is_named():
    def count(counts: Annotated[dict[str, int], Field(min_length=2)]):
        """Counts."""

    with pytest.raises(ProgramError, match=r"tools\(count\).*minProperties"):
        ask.run(tools([count]), backend=WalkBackend(name="qwen"))


def test_backends_without_grammars_are_read_as_they_come():
    class Remote(WalkBackend):
        def prepare(self, options):
            raise UnsupportedByBackendError("no grammars here")

    box = tools([weather], format="hermes")
    sure = f"Sure! {CALL} <tool_call>broken"
    state = ask.run(box, "required", backend=Remote(script=[sure, "Done."]))
    assert [call.name for call in state.get("step")] == ["weather"] and "broken" in state.get("step").text
    silent = WalkBackend(script=["No.", "Done."])
    silent.prepare = Remote().prepare
    with pytest.raises(ProgramError, match=r"expected a call of a tool, but the text is 'No\.'"):
        ask.run(box, "required", backend=silent)


def test_results_are_json_unless_they_are_text():
    @sgl.function
    def show(s, value):
        s += sgl.tool(value)

    backend = WalkBackend()
    contents = [
        show.run(value, backend=backend).messages()[0]["content"]
        for value in ("plain", {"a": None}, Booking(guests=1, name="é"), [Place("Rome")], 3)
    ]
    assert contents == [
        "plain",
        '{"a": null}',
        '{"guests": 1, "name": "é"}',
        '[{"city": "Rome", "country": "IT"}]',
        "3",
    ]


def test_answers_of_tools_stand_where_the_model_expects_them():
    @sgl.function
    def show(s):
        s += sgl.user("?") + sgl.tool("4")

    assert (
        show.run(backend=WalkBackend(template="qwen"))
        .text()
        .endswith("<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n")
    )
    assert show.run(backend=WalkBackend(template="mistral")).text() == "[INST] ? [/INST][TOOL_RESULTS] 4[/TOOL_RESULTS]"


# --- an agent in one line ------------------------------------------------------------------------------------


def called(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_the_loop_calls_until_the_model_answers():
    def broken(what: str) -> str:
        raise LookupError(f"there is no {what}")

    box = tools([slow, broken], format="hermes")
    script = sgl.Scripted(
        {"step": [called("slow", '{"question": "a"}'), called("broken", '{"what": "b"}'), "It is A."]}
    )
    state = box.loop("What is a?", backend=script)
    assert state.ret_value == "It is A."
    assert "What is a?" in script.prompts("step")[0] and "slow" in script.prompts("step")[0]
    assert script.prompts("step")[1] != script.prompts("step")[0] and "there is no b" in script.prompts("step")[2]
    script.assert_exhausted()


def test_the_loop_ends_with_its_steps():
    script = sgl.Scripted({"step": lambda prompt, request: called("slow", '{"question": "a"}')})
    state = tools([slow], format="hermes").loop("What is a?", 3, backend=script)
    assert state.ret_value is None and len(script.prompts("step")) == 3


@pytest.mark.parametrize(
    "wrong", [{"question": 3}, {"question": "a", "most_steps": 0}, {"question": "a", "temprature": 0}]
)
def test_the_loop_refuses(wrong):
    with pytest.raises((BadValueError, TypeError)):
        tools([slow]).loop(**wrong)

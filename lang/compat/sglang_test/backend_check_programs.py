"""`sglang.test.test_programs`: small programs that try out a backend, and checks of what comes back.

The names and parameters are those that test files for backends call. The checks are about form, not about what
a model knows: numbers are numbers, JSON parses, a choice is one of the choices. They run on the default backend
and raise AssertionError; `unittest.SkipTest` where the model or the machine cannot have what they need.
"""

# mypy: disable-error-code="call-overload,call-arg"
# programs of sglang give arguments by name together with options of the run, which no type checker can follow

from __future__ import annotations

import asyncio
import base64
import time
import unittest
from pathlib import Path
from typing import Any

from ...errors import ProgramError, UnsupportedByBackendError
from ...global_config import global_config
from ...nodes.primitives import assistant, gen, image, select, system, user
from ...sgl_function import SglFunction, function
from ..sglang_utils import download_and_cache_file, read_jsonl
from .backend_check_values import (
    check,
    test_decode_int,
    test_decode_json,
    test_decode_json_regex,
    test_dtype_gen,
    test_regex,
)

__all__ = [
    "test_chat_completion_speculative",
    "test_completion_speculative",
    "test_decode_int",
    "test_decode_json",
    "test_decode_json_regex",
    "test_dtype_gen",
    "test_expert_answer",
    "test_few_shot_qa",
    "test_gen_min_new_tokens",
    "test_hellaswag_select",
    "test_image_qa",
    "test_mt_bench",
    "test_parallel_decoding",
    "test_parallel_encoding",
    "test_react",
    "test_regex",
    "test_select",
    "test_stream",
    "test_stream_logprobs",
    "test_tool_use",
]

RED_SQUARE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAKklEQVR42mN4oKBAU8QwasGoBaMWjFowasGoBaMWjF"
    "owasGoBaMWDBULAKWUgD269a5MAAAAAElFTkSuQmCC"
)
HELLASWAG = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"


# --- one line, one choice ----------------------------------------------------------------------------------


@function
def _in_one_line(s: Any, question: str) -> None:
    s += "Q: What do bees make?\nA: Honey\nQ: What do cows give?\nA: Milk\n"
    s += "Q: " + question + "\nA:" + gen("answer", stop="\n", max_tokens=32)


def test_few_shot_qa() -> None:
    """An answer ends before its stop; a batch keeps its order."""
    answer = _in_one_line.run(question="What do hens lay?", temperature=0)["answer"]
    check("\n" not in answer, "an answer ends before the stop", answer)
    questions = ["What do sheep give?", "What do spiders make?", "What do trees bear?"]
    states = _in_one_line.run_batch([{"question": question} for question in questions], temperature=0.1)
    for question, state in zip(questions, states, strict=True):
        check(f"Q: {question}\nA:{state['answer']}" in state.text(), f"an answer to {question!r}", state.text())


@function
def _is_it_so(s: Any, statement: str) -> None:
    s += "Snow is cold. True\nFire is cold. False\nSomebody is at the door. Unknown\n"
    s += statement + " " + select("answer", ["True", "False", "Unknown"])


def test_select(check_answer: bool = False) -> None:
    """A choice is one of the choices; with `check_answer`, the same one when it is asked for again."""
    statements = ["Water is wet.", "Stones are soft.", "It rains in the next village."]
    states = _is_it_so.run_batch([{"statement": statement} for statement in statements])
    for statement, state in zip(statements, states, strict=True):
        chosen = state["answer"]
        check(chosen in ("True", "False", "Unknown"), "one of the choices", chosen)
        if check_answer:
            again = _is_it_so.run(statement=statement)["answer"]
            check(again == chosen, f"the same choice as before ({chosen})", again)


# --- turns -------------------------------------------------------------------------------------------------


@function
def _two_turns(s: Any, first: str, second: str) -> None:
    s += system("You answer in short sentences.")
    s += user(first)
    s += assistant(gen("answer_1"))
    with s.user():
        s += second
    with s.assistant():
        s += gen("answer_2")


def test_mt_bench() -> None:
    """Turns as expressions and as blocks give the messages of a conversation."""
    state = _two_turns.run(
        first="How does bread rise?", second="Say it for a child.", temperature=0.7, max_new_tokens=48
    )
    messages = state.messages()
    check(
        [message["role"] for message in messages][-4:] == ["user", "assistant"] * 2,
        "the turns in their order",
        messages,
    )
    check(messages[-1]["content"].strip() == state["answer_2"].strip(), "the second answer", messages[-1])


@function
def _asks_an_expert(s: Any, question: str) -> None:
    s += "Question: " + question + "\nThe one to ask is" + gen("expert", stop=[".", "\n"], max_tokens=24) + ".\n"
    s += "As" + s["expert"] + " says:" + gen("answer", stop=".", max_tokens=48) + "."


def test_expert_answer(check_answer: bool = True) -> None:
    """A variable is read while the program goes on; with `check_answer`, it is in the text twice."""
    state = _asks_an_expert.run(question="Why is the sea salt?", temperature=0.1)
    check(isinstance(state["answer"], str), "an answer", state["answer"])
    if check_answer:
        repeated = f"{state['expert']}.\nAs{state['expert']} says:{state['answer']}."
        check(state.text().endswith(repeated), f"the end {repeated!r}", state.text())


# --- control flow ------------------------------------------------------------------------------------------


@function
def _with_a_tool(s: Any, left: int, right: int) -> None:
    s += f"add(1, 2) = 3\nadd(20, 5) = 25\nThe sum of {left} and {right} is add("
    s += gen("left", int, stop=",") + ", " + gen("right", int, stop=")") + ") = "
    with s.var_scope("sum"):
        s += str(int(s["left"]) + int(s["right"]))


def test_tool_use() -> None:
    """What a program works out from what was generated is in the text, and in the scope's variable."""
    state = _with_a_tool(left=257, right=983, temperature=0)
    check(int(state["sum"]) == int(state["left"]) + int(state["right"]), "the tool's answer", state.text())
    check(state.text().endswith(f") = {state['sum']}"), "the answer at the end", state.text())


@function
def _thinks_and_acts(s: Any, question: str, steps: int) -> None:
    s += "Question: " + question + "\n"
    for step in range(1, steps + 1):
        s += f"Thought {step}:" + gen(stop=[".", "\n"], max_tokens=16) + ".\n"
        s += f"Action {step}: " + select(f"action_{step}", ["Search", "Finish"])
        if s[f"action_{step}"] == "Finish" or step == steps:
            s += " [" + gen("answer", stop="]", max_tokens=16) + "]\n"
            break
        s += " [" + gen(stop="]", max_tokens=16) + "]\n"


def test_react() -> None:
    """A loop that the model's choices steer comes to its end."""
    state = _thinks_and_acts.run(question="Who lives in the old mill?", steps=4, temperature=0.1)
    actions = [state[f"action_{step}"] for step in range(1, 5) if f"action_{step}" in state]
    check(set(actions[:-1]) <= {"Search"}, "searches before the last action", actions)
    check("]" not in state["answer"], "an answer that ends before its stop", state["answer"])


# --- forks -------------------------------------------------------------------------------------------------


@function
def _tips(s: Any, topic: str, count: int) -> None:
    s += f"{count} tips for {topic}:\n"
    for number in range(1, count + 1):
        s += f"{number}." + gen(max_tokens=12, stop=[".", "\n"]) + ".\n"
    forks = s.fork(count)
    for number, fork in enumerate(forks, 1):
        fork += f"More about tip {number}:" + gen("more", 32, stop=["\n\n"])
    forks.join()
    for number, fork in enumerate(forks, 1):
        s += f"Tip {number}:" + fork["more"] + "\n"
    s += "In short:" + gen("summary", max_tokens=48)


def test_parallel_decoding() -> None:
    """Forks generate at the same time; what they said comes together in order."""
    state = _tips.run(topic="a tidy desk", count=4, temperature=0.3)
    check(isinstance(state["summary"], str), "a summary", state["summary"])
    check(len(state["more"]) == 4, "a list with the text of each fork", state["more"])
    tips = "".join(f"Tip {number}:{more}\n" for number, more in enumerate(state["more"], 1))
    check(tips in state.text(), "the forks' texts in order", state.text())


@function
def _statements(s: Any, statements: list[str]) -> None:
    s += "Remember this.\n"
    forks = s.fork(len(statements))
    forks += lambda index: f"Statement {index}: {statements[index]}\n"
    forks.join(mode="concate_and_append")
    s += "Question: Who feeds the cat?\nAnswer:" + gen("answer", max_tokens=24)


def test_parallel_encoding(check_answer: bool = True) -> None:
    """Texts of forks are put together; with `check_answer`, all of them, in order, before the question."""
    statements = ["Ada feeds the dog.", "Ben feeds the cat.", "Cleo feeds the birds."]
    state = _statements.run(statements=statements, temperature=0)
    check(isinstance(state["answer"], str), "an answer", state["answer"])
    if check_answer:
        block = "".join(f"Statement {index}: {text}\n" for index, text in enumerate(statements))
        check(f"{block}Question:" in state.text(), "all statements in order", state.text())


# --- streams -----------------------------------------------------------------------------------------------


@function
def _one_answer(s: Any, question: str, **options: Any) -> None:
    s += system("You like to tell stories.")
    s += user(question)
    s += assistant(gen("answer", **options))


def test_stream() -> None:
    """The pieces of a stream add up to the text, those of a variable to its value."""
    state = _one_answer(question="Tell me of a long road.", stream=True)
    streamed = "".join(state.text_iter())
    check(streamed == state.text(), f"the text {state.text()!r}", streamed)
    state = _one_answer(question="Tell me of a long road.", stream=True)
    streamed = "".join(state.text_iter("answer"))
    check(streamed == state["answer"], f"the answer {state['answer']!r}", streamed)


def test_stream_logprobs() -> None:
    """Each piece of a stream comes with the log-probabilities up to it."""

    async def rows() -> list[list[Any]]:
        state = _one_answer(question="What is a well?", stream=True, max_new_tokens=16, return_logprob=True)
        pieces = state.text_async_iter("answer", return_meta_data=True)
        return [meta_info["output_token_logprobs"] async for _, meta_info in pieces]

    lengths = [len(found) for found in asyncio.run(rows())]
    check(lengths and lengths == sorted(lengths), "rows that grow", lengths)
    check(lengths[-1] > 0, "a row for each token", lengths)


# --- what costs less, what lasts longer --------------------------------------------------------------------


def _character(s: Any) -> None:
    s += "Name: Ada.\nBirthday: May 1, 1901.\nJob: Baker.\n\nName:" + gen("name", stop="\n")
    s += "\nBirthday:" + gen("birthday", stop="\n") + "\nJob:" + gen("job", stop="\n") + "\n"


def _prompt_tokens(program: SglFunction) -> int:
    """Those that one run of the program costs: what the backend bills, else what its nodes tell."""
    usage = getattr(global_config.default_backend, "token_usage", None)
    if usage is None:
        return program().usage().prompt_tokens
    usage.reset()
    program().sync()
    return int(usage.prompt_tokens)


def test_completion_speculative() -> None:
    """A service reads the prompt less often if it may speculate; an engine never reads it more often."""
    with_it = _prompt_tokens(function(_character, num_api_spec_tokens=64))
    without = _prompt_tokens(function(_character))
    billed = hasattr(global_config.default_backend, "token_usage")
    fewer = with_it < without if billed else with_it > 0
    check(fewer, f"fewer prompt tokens than {without} without speculation", with_it)


@function(num_api_spec_tokens=256)
def _character_in_turns(s: Any) -> None:
    s += system("You make up people.")
    s += user("Name, birthday and job, a line each.")
    s += assistant("Name: Ada.\nBirthday: May 1, 1901.\nJob: Baker.\n")
    s += user("Another one.")
    s += assistant(
        "Name:" + gen("name", stop="\n") + "\nBirthday:" + gen("birthday", stop="\n") + "\nJob:" + gen("job", stop="\n")
    )


def test_chat_completion_speculative() -> None:
    """Several gens of one assistant turn get their values."""
    state = _character_in_turns()
    state.sync()
    for name in ("name", "birthday", "job"):
        check("\n" not in state[name], f"{name}: one line", state[name])


def test_gen_min_new_tokens(model_path: str | None = None) -> None:
    """min_tokens holds. `model_path` is accepted from older test files."""
    least, most = 64, 96
    state = _one_answer.run(question="Yes or no?", min_tokens=least, max_tokens=most)
    count = (state.get_meta_info("answer") or {}).get("completion_tokens")
    if count is None:
        raise unittest.SkipTest("this backend does not tell how many tokens it generated")
    check(least <= count <= most, f"{least} to {most} tokens", count)


# --- what not every model and machine has ------------------------------------------------------------------


@function
def _about_a_picture(s: Any, picture: Any, question: str) -> None:
    s += user(image(picture) + question)
    s += assistant(gen("answer"))


def test_image_qa() -> None:
    """A question about a picture: example_image.png of the working folder, else a red square."""
    here = Path("example_image.png")
    picture: Any = str(here) if here.exists() else RED_SQUARE
    try:
        state = _about_a_picture.run(picture, "What is this?", temperature=0, max_new_tokens=64)
        state["answer"]
    except ProgramError as error:
        if isinstance(error.__cause__, UnsupportedByBackendError):
            raise unittest.SkipTest(f"this model takes no pictures: {error.__cause__}") from None
        raise
    answer = state.messages()[-1]
    check(answer["role"] == "assistant" and answer["content"].strip(), "an answer", answer)


@function
def _ends_how(s: Any, shots: str, context: str, choices: list[str]) -> None:
    s += shots + context
    s += select("answer", choices=choices)


def _hellaswag() -> list[dict[str, Any]]:
    import httpx

    try:
        return read_jsonl(download_and_cache_file(HELLASWAG))
    except (OSError, httpx.HTTPError) as error:
        raise unittest.SkipTest(f"HellaSwag is not reachable at {HELLASWAG}: {error}") from error


def test_hellaswag_select() -> tuple[float, float]:
    """200 questions of HellaSwag with 5 examples: how many are right (0 to 1), and the seconds it took."""
    rows = _hellaswag()
    contexts = [f"{row['activity_label']}: {row['ctx']} " for row in rows]
    shots = "".join(f"{contexts[n]}{rows[n]['endings'][int(rows[n]['label'])]}\n\n" for n in range(5))
    asked = [
        {"shots": shots, "context": context, "choices": row["endings"]}
        for context, row in zip(contexts[:200], rows, strict=False)
    ]
    begun = time.perf_counter()
    states = _ends_how.run_batch(asked, temperature=0, num_threads=64, progress_bar=True)
    chosen = [row["endings"].index(state["answer"]) for row, state in zip(rows, states, strict=False)]
    seconds = time.perf_counter() - begun
    right = sum(choice == int(row["label"]) for choice, row in zip(chosen, rows, strict=False))
    return right / len(chosen), seconds

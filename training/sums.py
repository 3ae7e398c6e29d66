"""Calculators: sums in signs and in words, and the word problems of GSM8K solved step by step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

from sgl.runtime.nano.nano_prompts import (
    Message,
    PromptField,
    PromptTool,
    message,
    tool_answer,
    tool_call,
    tool_result,
    tools_system,
)
from training.exchanges import Exchange, conversation
from training.values import NUMBER_WORDS

CALCULATOR_NAMES = ("calculator", "calc", "calculate", "math", "evaluate", "arithmetic", "compute")
EXPRESSION_NAMES = ("expression", "formula", "expr", "calculation", "input", "term")
CALCULATOR_NOTES = (
    "evaluates an arithmetic expression",
    "computes numbers",
    "does arithmetic",
    "",
    "Calculate the value of an expression",
    "Computes an arithmetic expression",
    "solves sums",
    "Evaluate a formula",
)
SUMS = (
    "compute {}",
    "what is {}?",
    "What is {}?",
    "{}",
    "calculate {}",
    "How much is {}?",
    "Please compute {}.",
    "What does {} give?",
    "{} = ?",
    "I need the value of {}",
    "Can you work out {}?",
    "what's {}",
    "What's {}?",
    "Evaluate {}",
)
EXAMPLE_SUM = "48 / 2 + 17"
WORDINGS = {
    "+": (
        "what is {a} plus {b}",
        "add {a} and {b}",
        "the sum of {a} and {b}",
        "I had {a} and got {b} more. How many now?",
        "how much is {a} and {b} together",
    ),
    "-": (
        "what is {a} minus {b}",
        "subtract {b} from {a}",
        "take {b} away from {a}",
        "I had {a} and gave away {b}. How many are left?",
        "the difference between {a} and {b}",
    ),
    "*": (
        "what is {a} times {b}",
        "multiply {a} by {b}",
        "{a} x {b}",
        "the product of {a} and {b}",
        "One costs {a} dollars. What do {b} cost?",
        "{a} multiplied by {b}",
    ),
    "/": (
        "what is {a} divided by {b}",
        "divide {a} by {b}",
        "share {a} among {b} people, how much does each get",
        "{a} over {b}",
    ),
}
ANSWERS = (
    "It is {r}.",
    "The result is {r}.",
    "{e} = {r}",
    "That makes {r}.",
    "{e} is {r}.",
    "{e} is {r}.",
    "{e} is {r}.",
)


class Sums:
    """Composes requests to calculate from a seeded generator."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def call(self) -> Exchange:
        rng = self.rng
        request, expression = self._sum()
        result = evaluate(expression)
        tool = PromptTool(
            rng.choice(CALCULATOR_NAMES) if rng.random() < 0.5 else "calculator",
            rng.choice(CALCULATOR_NOTES),
            (PromptField(rng.choice(EXPRESSION_NAMES) if rng.random() < 0.4 else "expression"),),
        )
        answer = rng.choice(ANSWERS).format(r=result, e=expression)
        arguments = {tool.parameters[0].name: expression}
        return Exchange("calculator", tool, conversation(request, tool, arguments, {"result": result}, answer))

    def _sum(self) -> tuple[str, str]:
        rng = self.rng
        a, b = rng.randint(1, rng.choice([12, 100, 5000])), rng.randint(1, rng.choice([12, 100, 900]))
        draw = rng.random()
        if draw < 0.08:
            return rng.choice([f"what is {b}% of {a}", f"{b} percent of {a}"]), f"{a} * {b} / 100"
        if draw < 0.13:
            return rng.choice([f"half of {a}", f"what is half of {a}"]), f"{a} / 2"
        if draw < 0.6:
            written = self._written(a, b)
            return rng.choice(SUMS).format(written), written
        sign = rng.choice("+-*/")
        spoken = {"a": self._number(a), "b": self._number(b)}
        text = rng.choice(WORDINGS[sign]).format_map(spoken)
        return rng.choice([text, text.capitalize() + "?", text.capitalize()]), f"{a} {sign} {b}"

    def _written(self, a: int, b: int) -> str:
        """An expression in signs, to be copied as it stands."""
        rng = self.rng
        x, y = rng.choice("+-*/"), rng.choice("+-*/")
        c = rng.randint(1, rng.choice([20, 50, 500]))
        shapes = [
            "{a} {x} {b}",
            "{a} {x} {b} {y} {c}",
            "{a} {x} {b} {y} {c}",
            "({a} {x} {b}) {y} {c}",
            "{a} {x} ({b} {y} {c})",
        ]
        text = rng.choice(shapes).format(a=a, b=b, c=c, x=x, y=y)
        if text == EXAMPLE_SUM:
            return self._written(a + 1, b)
        return text if rng.random() < 0.7 else text.replace(" ", "")

    def _number(self, number: int) -> str:
        wordy = number < len(NUMBER_WORDS) and self.rng.random() < 0.25
        return NUMBER_WORDS[number] if wordy else str(number)


def evaluate(expression: str) -> int | float:
    """The value of an arithmetic expression of numbers, + - * / and brackets, rounded to 4 digits."""
    if not re.fullmatch(r"[\d+\-*/(). ]+", expression):
        raise ValueError(f"not an arithmetic expression: {expression!r}; use digits, + - * / and brackets")
    try:
        value = round(float(eval(expression, {"__builtins__": {}})), 4)
    except ZeroDivisionError:
        return 0
    return int(value) if value == int(value) else value


# --- word problems with calculator annotations -------------------------------------------------------

ANNOTATION = re.compile(r"<<([^=<>]+)=([^<>]+)>>")


def word_problem(row: dict[str, str]) -> list[Message]:
    """A GSM8K problem solved with the calculator, step by step; empty when a step is not plain."""
    tool = PromptTool("calculator", CALCULATOR_NOTES[0], (PromptField("expression"),))
    turns: list[Message] = [tools_system([tool]), message("user", row["question"])]
    steps = ANNOTATION.findall(row["answer"])
    if not steps or len(steps) > 5:
        return []
    for expression, value in steps:
        if not re.fullmatch(r"[\d+\-*/(). ]+", expression) or not re.fullmatch(r"-?[\d.]+", value):
            return []
        turns += [
            *tool_call("calculator", {"expression": expression.strip()}),
            tool_result({"result": value}),
        ]
    final = row["answer"].rpartition("####")[2].strip()
    return [*turns, *tool_answer(f"The answer is {final}.")]


def single_steps(row: dict[str, str]) -> Iterator[list[Message]]:
    """The lines of a GSM8K solution as small requests: `48/2 clips in May` becomes one calculation."""
    tool = PromptTool("calculator", CALCULATOR_NOTES[0], (PromptField("expression"),))
    for line in row["answer"].splitlines():
        found = ANNOTATION.findall(line)
        if len(found) != 1 or not re.fullmatch(r"[\d+\-*/(). ]+", found[0][0]):
            continue
        (expression, value), told = found[0], ANNOTATION.sub("", line)
        asked = re.sub(r"\s*=\s*\$?[\d.,]+", "", told)
        if asked == told or not re.search(r"\d\s*[-+*/x]\s*\$?\d", asked):
            continue
        yield [
            tools_system([tool]),
            message("user", f"{asked} How much is it?"),
            *tool_call("calculator", {"expression": expression.strip()}),
            tool_result({"result": value}),
            *tool_answer(told),
        ]

"""An agent with three tools: the model selects a tool, writes its arguments as JSON, and uses the result.

    python examples/agent.py                      # three questions, one conversation
    python examples/agent.py "What is 12 * 7?"    # your own
"""

from __future__ import annotations

import ast
import json
import operator
import sys
from collections.abc import Callable
from typing import Any

import sgl
from sgl.runtime.nano import prompts
from sgl.runtime.nano.prompts import Field, Tool

OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.USub: operator.neg,
}  # fmt: skip
CONTACTS = {"maria": "+49 30 5550 143", "john": "+1 415 555 0199", "aisha": "+44 20 7946 0018"}


def calculator(expression: str) -> dict[str, Any]:
    """The value of an arithmetic expression; nothing else is evaluated."""

    def value(node: ast.AST) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.operand))
        raise ValueError(f"not arithmetic: {ast.unparse(node)}")

    try:
        result = value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError) as error:
        return {"error": str(error)}
    return {"result": int(result) if result == int(result) else round(result, 4)}


def find_contact(name: str) -> dict[str, Any]:
    number = CONTACTS.get(name.lower())
    return {"name": name, "phone": number} if number else {"error": f"no contact called {name}"}


class Todo:
    def __init__(self) -> None:
        self.items: list[str] = []

    def add(self, task: str) -> dict[str, Any]:
        self.items.append(task)
        return {"task": task, "open_tasks": len(self.items)}


def tools() -> dict[str, tuple[Tool, Callable[..., dict[str, Any]]]]:
    return {
        "calculator": (Tool("calculator", "Compute an arithmetic expression", (Field("expression"),)), calculator),
        "find_contact": (Tool("find_contact", "Find the phone number of a contact", (Field("name"),)), find_contact),
        "add_todo": (Tool("add_todo", "Add a task to the to-do list", (Field("task"),)), Todo().add),
    }


@sgl.function
def agent(s, questions, box, most_calls=2):
    s += sgl.system(prompts.tools_system(tool for tool, _ in box.values())["content"])
    for question in questions:
        print(f"\nuser       {question}")
        s += sgl.user(question)
        for _ in range(most_calls):
            s += sgl.assistant(sgl.select("action", [*box, prompts.ANSWER]))
            if s["action"] == prompts.ANSWER:
                break
            tool, call = box[s["action"]]
            schema = prompts.schema_of(tool.parameters, required=True)
            s += sgl.assistant(sgl.gen("arguments", max_tokens=60, json_schema=schema))
            arguments = json.loads(s["arguments"])
            result = call(**arguments)
            print(f"tool       {s['action']}({json.dumps(arguments)}) -> {json.dumps(result)}")
            s += sgl.tool(prompts.tool_result(result)["content"])
        else:
            s += sgl.assistant(prompts.ANSWER)
        s += sgl.assistant(sgl.gen("answer", max_tokens=60))
        print(f"assistant  {s['answer'].strip()}")


QUESTIONS = ["What is 48 / 2 + 17?", "What is Maria's phone number?", "Remind me to buy milk."]


def main() -> None:
    with sgl.Engine() as engine:
        state = agent.run(sys.argv[1:] or QUESTIONS, tools(), backend=engine, temperature=0)
        state.sync()
        spent = engine.stats()
    print(f"\n{spent.generated_tokens} tokens generated, {spent.forced_tokens} of them forced by grammars; {spent.computed_tokens} computed.")


if __name__ == "__main__":
    main()

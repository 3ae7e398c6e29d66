"""An agent with three tools: Python functions that the model calls, until it has its answer.

python examples/agent.py                      # three questions, one conversation
python examples/agent.py "What is 12 * 7?"    # your own
"""

from __future__ import annotations

import json
import re
import sys

import sgl
from sgl.lang.tools import Toolbox

CONTACTS = {"maria": "+49 30 5550 143", "john": "+1 415 555 0199", "aisha": "+44 20 7946 0018"}
TASKS: list[str] = []


def calculator(expression: str):
    """Compute an arithmetic expression"""
    if not re.fullmatch(r"[-+*/(). \d]+", expression) or "**" in expression:
        raise ValueError(f"not arithmetic: {expression}")
    result = round(eval(expression), 4)
    return {"result": int(result) if result == int(result) else result}


def find_contact(name: str):
    """Find the phone number of a contact"""
    if name.lower() not in CONTACTS:
        raise LookupError(f"no contact called {name}")
    return {"name": name, "phone": CONTACTS[name.lower()]}


def add_todo(task: str):
    """Add a task to the to-do list"""
    TASKS.append(task)
    return {"task": task, "open_tasks": len(TASKS)}


@sgl.function
def agent(s: sgl.State, questions: list[str], toolbox: Toolbox, most_steps: int = 3):
    s += sgl.system(toolbox)
    for question in questions:
        print(f"\nuser       {question}")
        s += sgl.user(question)
        answer = ""
        for _ in range(most_steps):
            s += sgl.assistant(toolbox.call("step", max_tokens=60))
            step = s.get("step")
            for call in step:
                result = toolbox.run(call)
                print(f"tool       {call.name}({json.dumps(call.arguments)}) -> {json.dumps(result)}")
                s += sgl.tool(result)
            if not step:
                answer = step.text
                break
        print(f"assistant  {answer or 'no answer yet'}")


def main() -> None:
    questions = sys.argv[1:] or ["What is 48 / 2 + 17?", "What is Maria's phone number?", "Remind me to buy milk."]
    state = agent.run(questions, sgl.tools([calculator, find_contact, add_todo]), temperature=0)
    print(f"\n{state.usage()}")


if __name__ == "__main__":
    main()

"""An agent in a few lines: Python functions that the model calls until it has its answer."""

from __future__ import annotations

import sgl

PHONES = {"maria": "+49 30 5550 143", "john": "+1 415 555 0199"}


def find_contact(name: str) -> dict[str, str]:
    """Find the phone number of a contact"""
    return {"name": name, "phone": PHONES[name.lower()]}


toolbox = sgl.tools([find_contact])


@sgl.function
def agent(s: sgl.State, question: str) -> str | None:
    s += sgl.system(toolbox) + sgl.user(question)
    for _ in range(3):
        s += sgl.assistant(step := toolbox.call("step", max_tokens=60))
        calls = s.get(step)
        if not calls:
            return calls.text
        for call in calls:
            s += sgl.tool(toolbox.run(call))
    return None


print(agent.with_options(temperature=0).run("What is Maria's phone number?").ret_value)

"""A ReAct loop (action, observation, thought) over a small store of facts, for questions of several steps.

    python examples/react.py                                           # 12 questions with known answers
    python examples/react.py "What is the phone number of Eva's manager?"

An action is text that a regex allows: `get_manager {"name": "Maria"}`. The bundled model chooses actions and phrases
answers well, but does not think: here the thought is code, which puts what was found into the question ("the city of
Maria's manager" -> "the city of Omar") and asks again. With a larger model the thought is one more
`gen("thought", stop="\\n")`, and the rest stays. An answer counts as right if it contains the fact; "with one degrees"
in "snowy with one degrees" is made up by the model. (`agent.py` calls tools with `sgl.tools`.)
"""

from __future__ import annotations

import json
import sys

import sgl

STAFF = {
    "Maria": {"manager": "Omar", "city": "Lisbon", "phone number": "+351 21 555 0143"},
    "Omar": {"manager": "Eva", "city": "Cairo", "phone number": "+20 2 5550 1877"},
    "John": {"manager": "Maria", "city": "Rome", "phone number": "+39 06 555 0199"},
    "Eva": {"manager": "Aisha", "city": "Oslo", "phone number": "+47 22 555 0180"},
    "Aisha": {"manager": "Aisha", "city": "London", "phone number": "+44 20 7946 0018"},
}
WEATHER = {"Lisbon": "sunny", "Cairo": "windy", "Rome": "cloudy", "Oslo": "snowy", "London": "rainy"}
TASK = """Use a tool, then give its arguments as JSON, or answer.
- get_manager: tells the manager of a person
  - name
- get_city: tells the city of a person
  - name
- get_phone_number: tells the phone number of a person
  - name
- get_weather: gives the weather of a place
  - city"""  # in the form that the bundled model was trained on: its answer is the word "answer", then a sentence
ACTION = r'get_(manager|city|phone_number) \{"name": "[A-Z][a-z]+"\}|get_weather \{"city": "[A-Z][a-z]+"\}'
QUESTIONS = {
    "What is the phone number of Maria?": "+351 21 555 0143",
    "Who is the manager of Omar?": "Eva",
    "What is the weather in Oslo?": "snowy",
    "What is the phone number of Maria's manager?": "+20 2 5550 1877",
    "What is the weather in John's city?": "cloudy",
    "Tell me the city of Eva's manager.": "London",
    "Who is the manager of John's manager?": "Omar",
    "What is the weather in Omar's city?": "windy",
    "I need the phone number of Omar's manager.": "+47 22 555 0180",
    "What is the weather in Maria's manager's city?": "windy",
    "What is the phone number of John's manager's manager?": "+20 2 5550 1877",
    "How is the weather where Eva lives?": "snowy",
}


def act(action: str) -> tuple[str, dict[str, str]]:
    """Carry an action out: the words for what was asked ("Maria's manager"), and the observation."""
    name, _, arguments = action.partition(" ")
    subject = next(iter(json.loads(arguments).values()))
    wanted = name.removeprefix("get_").replace("_", " ")
    found = WEATHER.get(subject) if wanted == "weather" else STAFF.get(subject, {}).get(wanted)
    return f"{subject}'s {wanted}", {wanted: found} if found else {"error": f"nothing known of {subject}"}


@sgl.function
def react(s: sgl.State, question: str, most_steps: int = 4) -> list[str]:
    s += sgl.system(TASK)
    trace = []
    for _ in range(most_steps):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("action", regex=ACTION, max_tokens=40))
        asked, observation = act(s["action"])
        s += sgl.tool(observation)
        trace += [f"action       {s['action']}", f"observation  {json.dumps(observation)}"]
        if asked not in question:
            break
        question = question.replace(asked, next(iter(observation.values())))
        trace.append(f"thought      {asked} is known: {question}")
    s += sgl.assistant("answer") + sgl.assistant(sgl.gen("answer", max_tokens=30, stop="\n"))
    return trace


def main() -> None:
    questions = sys.argv[1:] or list(QUESTIONS)
    states = react.run_batch([{"question": question} for question in questions], temperature=0)
    right = 0
    for question, state in zip(questions, states, strict=True):
        good = QUESTIONS.get(question, "") in state["answer"]
        right += good
        print(
            "\n  ".join(
                [
                    f"\nquestion     {question}",
                    *state.ret_value,
                    f"answer       {state['answer']}{'' if good else f'  WRONG: {QUESTIONS[question]}'}",
                ]
            )
        )
    if not sys.argv[1:]:
        print(f"\n{right} of {len(questions)} answers are right.")
    print(sgl.Usage.total(state.usage() for state in states))


if __name__ == "__main__":
    main()

"""A small language of your own: one grammar constrains the model and parses what it writes; then the statements run.

    python examples/dsl.py                                               # 12 orders with known effects
    python examples/dsl.py "Wake me at 7 am. Make it 20 degrees in the office."

The grammar is in Lark's syntax: sgl takes it as `ebnf=`, `lark.Lark` parses with it, so whatever the model writes
parses.
The statements look like tool calls with JSON, and the prompt lists them as tools, because that is what the bundled
model
was trained on. With a larger model the language can have any shape, with variables, loops and conditions.
"""

from __future__ import annotations

import json
import re
import sys

import lark

import sgl

GRAMMAR = r"""start: light | heat | alarm | timer | music | nothing
light: "set_light {\"room\": \"" ROOM "\", \"brightness\": " PERCENT "}"
heat: "set_temperature {\"room\": \"" ROOM "\", \"degrees\": " DEGREES "}"
alarm: "set_alarm {\"time\": \"" TIME "\"}"
timer: "set_timer {\"duration\": \"" DURATION "\"}"
music: "play_music {\"artist\": \"" NAME "\"}"
nothing: "answer"
ROOM: "kitchen" | "bedroom" | "bathroom" | "garden" | "office"
PERCENT: /100|[1-9]?[0-9]/
DEGREES: /1[5-9]|2[0-8]/
TIME: /(1[0-2]|[1-9])(:[0-5][0-9])? [ap]m/
DURATION: /[0-9]{1,3} (seconds|minutes|hours)/
NAME: /[A-Z][A-Za-z' ]{1,30}/
"""
STATEMENTS = """Use a tool, then give its arguments as JSON, or answer.
- set_light: sets a lamp at home
  - room (kitchen | bedroom | bathroom | garden | office)
  - brightness (integer)
- set_temperature: sets the heating of a room
  - room (kitchen | bedroom | bathroom | garden | office)
  - degrees (integer)
- set_alarm: sets an alarm
  - time
- set_timer: sets a timer
  - duration
- play_music: plays music
  - artist"""
ORDERS = {
    "Set the kitchen light to 40 percent.": {"light in the kitchen": "40"},
    "Heat the bathroom to 22 degrees.": {"heating in the bathroom": "22"},
    "Wake me at 6:30 am.": {"alarm": "6:30 am"},
    "Set a timer for 12 minutes.": {"timer": "12 minutes"},
    "I want to hear Nina Simone.": {"music": "Nina Simone"},
    "Good night! Dim the bedroom to 10 percent, please. Alarm at 7 am.": {
        "light in the bedroom": "10",
        "alarm": "7 am",
    },
    "Make it 19 degrees in the office. It is dark here, turn the office light up to 90 percent.": {
        "heating in the office": "19",
        "light in the office": "90",
    },
    "Count down 90 seconds.": {"timer": "90 seconds"},
    "Play something by Miles Davis and be quick.": {"music": "Miles Davis"},
    "The garden light should be at 100 percent.": {"light in the garden": "100"},
    "It is cold in the kitchen! 24 degrees, please.": {"heating in the kitchen": "24"},
    "We cook. Kitchen light to 80. Timer for 25 minutes. Put on Aretha Franklin.": {
        "light in the kitchen": "80",
        "timer": "25 minutes",
        "music": "Aretha Franklin",
    },
}


class House(lark.Visitor):
    """Runs statements: what is set in this house."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}

    def light(self, tree: lark.Tree) -> None:
        self.state[f"light in the {tree.children[0]}"] = str(tree.children[1])

    def heat(self, tree: lark.Tree) -> None:
        self.state[f"heating in the {tree.children[0]}"] = str(tree.children[1])

    def __default__(self, tree: lark.Tree) -> None:
        if tree.children and tree.data != "start":
            self.state[tree.data] = str(tree.children[0])


@sgl.function
def write(s: sgl.State, order: str) -> list[str]:
    s += sgl.system(STATEMENTS)
    sentences = re.split(r"(?<=[.!?]) ", order)
    forks = s.fork(len(sentences))
    forks += lambda i: sgl.user(sentences[i]) + sgl.assistant(sgl.gen("statement", ebnf=GRAMMAR, max_tokens=60))
    forks.join()
    return s["statement"]


def main() -> None:
    orders = sys.argv[1:] or list(ORDERS)
    states = write.run_batch([{"order": order} for order in orders], temperature=0)
    parser, right = lark.Lark(GRAMMAR), 0
    for order, state in zip(orders, states, strict=True):
        house = House()
        for statement in state.ret_value:
            house.visit(parser.parse(statement))
        good = house.state == ORDERS.get(order, house.state)
        right += good
        print(
            f"\n{order}\n  "
            + "\n  ".join(state.ret_value)
            + f"\n  {'->' if good else 'WRONG:'} {json.dumps(house.state)}"
        )
    if not sys.argv[1:]:
        print(
            f"\n{right} of {len(orders)} orders are carried out right; all {sum(len(s.ret_value) for s in states)} "
            "statements parse."
        )
    print(sgl.Usage.total(state.usage() for state in states))


if __name__ == "__main__":
    main()

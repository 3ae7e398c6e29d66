"""A run as a page or a picture: every choice and token of a program that asks about three services.

python examples/report_a_run.py [PAGE.html or PICTURE.svg]
"""

from __future__ import annotations

import json
import sys
from typing import Any

from extract_bookings import SAMPLE, TASK, about, intents, slots, transcript

import sgl

SERVICES = ("RentalCars_1", "Hotels_1", "Weather_1")
TALK = [
    ("user", "I am flying to Portland next week and I need a car there."),
    ("system", "What kind of car do you want, and from when to when?"),
    ("user", "A compact one, from Monday to Thursday, pick it up at 9 am. And find me a hotel, one room is enough."),
]


@sgl.function
def track(s: sgl.State, turns: list[tuple[str, str]], services: list[dict[str, Any]]):
    s += sgl.system(TASK) + sgl.user(transcript(turns))
    forks = s.fork(len(services))
    for branch, service in zip(forks, services, strict=True):
        branch += sgl.user(sgl.fields(slots(service), about(service)))
        branch += sgl.assistant(sgl.select("intent", intents(service)))
        branch += sgl.assistant(
            sgl.gen(
                "slots", max_tokens=120, json_schema=slots(service, "dontcare"), return_logprob=True, top_logprobs_num=4
            )
        )
    forks.join()


def main() -> None:
    known = {service["service_name"]: service for service in json.loads(SAMPLE.read_text(encoding="utf-8"))["services"]}
    state = track.run(TALK, [known[name] for name in SERVICES], temperature=0)
    path = sys.argv[1] if len(sys.argv) > 1 else "run.html"
    if path.endswith(".svg"):
        state.picture(path)
    else:
        state.report(path)
    for name, intent, found in zip(SERVICES, state["intent"], state["slots"], strict=True):
        print(f"{name:13} {intent:16} {found}")
    print(f"{state.usage()}\n{path} shows it; open it in a browser")


if __name__ == "__main__":
    main()

"""A run as a picture: what does a customer want of three services? A page shows how the model came to it.

    python examples/report_a_run.py [PAGE.html or PICTURE.svg]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import sgl
from sgl.runtime.nano import prompts

SAMPLE = Path(__file__).parent / "data/sgd_sample.json"
SERVICES = ("RentalCars_1", "Hotels_1", "Weather_1")
TALK = [
    ("user", "I am flying to Portland next week and I need a car there."),
    ("system", "What kind of car do you want, and from when to when?"),
    ("user", "A compact one, from Monday to Thursday, pick it up at 9 am. And find me a hotel, one room is enough."),
]


@sgl.function
def track(s, turns, services):
    s += sgl.messages(prompts.dialogue_prefix(turns))
    forks = s.fork(len(services))
    for branch, service in zip(forks, services, strict=True):
        branch += sgl.messages([prompts.service_question(service)])
        branch += sgl.assistant(sgl.select("intent", prompts.intent_names(service)))
        schema = prompts.schema_of(prompts.state_fields(service))
        branch += sgl.assistant(sgl.gen("slots", max_tokens=120, json_schema=schema, return_logprob=True, top_logprobs_num=4))
    forks.join()


def main() -> None:
    known = {service["service_name"]: service for service in json.loads(SAMPLE.read_text(encoding="utf-8"))["services"]}
    state = track.run(TALK, [known[name] for name in SERVICES], temperature=0)
    path = sys.argv[1] if len(sys.argv) > 1 else "run.html"
    if path.endswith(".svg"):
        state.picture(path)
    else:
        state.report(path)
    for name, intent, slots in zip(SERVICES, state["intent"], state["slots"], strict=True):
        print(f"{name:13} {intent:16} {slots}")
    print(f"{state.usage()}\n{path} shows it; open it in a browser")


if __name__ == "__main__":
    main()

"""A travel guide in the style of public quick starts: turns, a stream, a batch, a fork, a choice."""

import json
import sys

import sglang as sgl
from sglang import assistant, function, gen, user


@function
def tour(s, city):
    s += user("Which place should I see in " + city + "?")
    s += assistant(gen("place", max_tokens=12))
    s += user("And where should I eat?")
    s += assistant(gen("food", max_tokens=12))


@sgl.function
def advice(s, n):
    s += "Two pieces of advice for travellers.\n"
    forks = s.fork(n)
    for number, fork in enumerate(forks):
        fork += f"Advice {number + 1}:" + sgl.gen("advice", max_tokens=8, stop="\n")
    forks.join()
    s += "Therefore " + sgl.select("verdict", choices=["go", "stay at home"])


def main():
    sgl.set_default_backend(sgl.RuntimeEndpoint("http://localhost:30000"))
    state = tour.run(city="Rome", temperature=0)
    streamed = tour.run(city="Rome", temperature=0, stream=True)
    pieces = list(streamed.text_iter())
    states = tour.run_batch([{"city": "Rome"}, {"city": "Oslo"}], temperature=0, progress_bar=True)
    forked = advice.run(n=2, temperature=0)
    told = {
        "arguments": sys.argv,
        "text": state.text(),
        "streamed": "".join(pieces),
        "batch": [one.text() for one in states],
        "roles": [message["role"] for message in state.messages()],
        "advice": forked["advice"],
        "verdict": forked["verdict"],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()

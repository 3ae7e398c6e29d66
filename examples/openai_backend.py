"""One program, two places: on the engine in this process, and on any server of OpenAI's protocol.

    pip install 'sgl[openai,server]'
    python examples/openai_backend.py                                     # starts `sgl serve` itself
    python examples/openai_backend.py --url http://127.0.0.1:30000/v1     # your server
    OPENAI_API_KEY=... python examples/openai_backend.py --url https://api.openai.com/v1 --model gpt-4o-mini

The type becomes a JSON Schema, which the engine enforces here and the server there. OpenAI's strict mode writes every
field, null where the mail does not say it, which the bundled model does badly: `sgl serve` is declared as
constrained="sglang" and leaves such fields out. Options that a server of the plain protocol lacks, such as `regex=`,
are
refused before anything is sent; --constrained declares that it has them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sgl

MAILS = (
    "Hello, my name is Anna Weber. We would like a room in Lisbon on March 3rd for 2 guests. Thank you!",
    "Hi, Omar Haddad here, please book a table in Cairo on Friday for 5 guests.",
    "My name is Li Chen, I am looking for a hotel in Oslo on May 4th for 3 guests.",
    "Do you have parking?",  # says none of it: every field is None
)


@dataclass
class Booking:
    name: str | None = None
    city: str | None = None
    date: str | None = None
    guests: int | None = None


@sgl.function
def read_mail(s: sgl.State, mail: str) -> Booking:
    s += sgl.system(sgl.fields(Booking))
    s += sgl.user(mail)
    s += sgl.assistant(sgl.gen("booking", Booking, max_tokens=80))
    return s.get("booking")


@contextmanager
def served() -> Iterator[str]:
    """`sgl serve` with the bundled model at a free port, until the block ends; its URL."""
    command = [sys.executable, "-m", "sgl.cli", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            for line in server.stdout:
                if found := re.search(r"http://[\d.]+:\d+", line):
                    yield found[0] + "/v1"
                    return
            raise SystemExit("sgl serve did not start; run it by hand to see why")
        finally:
            server.terminate()
            server.communicate()  # its last words, and its end


def measure(name: str, backend: object) -> list[Booking]:
    started = time.perf_counter()
    states = read_mail.run_batch([{"mail": mail} for mail in MAILS], backend=backend, temperature=0, progress_bar=False)
    bookings = [state.ret_value for state in states]
    print(f"{name:8} {time.perf_counter() - started:5.2f} s  {sgl.Usage.total(state.usage() for state in states)}")
    return bookings


def compare(url: str, model: str, constrained: str | bool) -> None:
    remote = sgl.OpenAI(
        model, base_url=url, constrained=constrained, **({} if "api.openai.com" in url else {"api_key": "none"})
    )
    there = measure("server", remote)
    with sgl.Engine() as engine:
        here = measure("engine", engine)
    for mine, other in zip(here, there, strict=True):
        print(
            f"{'same' if mine == other else 'DIFFERENT'}: {mine}" + ("" if mine == other else f"\n           {other}")
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server's base URL; without one `sgl serve` is started")
    parser.add_argument("--model", default="nano", help="the model's name there")
    parser.add_argument("--constrained", choices=["vllm", "sglang"], help="whose additional options the server has")
    args = parser.parse_args()
    if args.url:
        compare(args.url, args.model, args.constrained or False)
        return
    with served() as url:
        compare(url, args.model, args.constrained or "sglang")


if __name__ == "__main__":
    main()

"""Thousands of rows, one by one into a file: progress, failures by row, and a journal to resume from after a crash.

    python examples/batch_with_resume.py --kill-after 100    # kills itself in the middle, as a crash would
    python examples/batch_with_resume.py                     # resumes: results so far are read from the journal
    python examples/batch_with_resume.py --rows 3000 --folder /tmp/mails

The rows are made-up mails with known contents; some are for groups of more than 20, which the program's own type
refuses.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

import sgl

WORDINGS = (
    "Hello, my name is {name}. We would like a room in {city} on {date} for {guests} guests. Thank you!",
    "Hi, {name} here, please book a table in {city} on {date} for {guests} guests.",
    "I am {name} and I am looking for a hotel in {city} on {date}, we are {guests} guests.",
)
NAMES, LAST = (
    ["Anna", "Omar", "Mia", "Li", "Carlos", "Eva", "Lars", "Rita"],
    ["Weber", "Haddad", "Rossi", "Chen", "Ruiz", "Lund", "Berg", "Lopes"],
)
CITIES, MONTHS = (
    ["Lisbon", "Cairo", "Rome", "Oslo", "Porto", "Prague", "Madrid", "Athens"],
    ["March", "April", "May", "June", "July"],
)


@dataclass
class Booking:
    name: str | None = None
    city: str | None = None
    date: str | None = None
    guests: int | None = None

    def __post_init__(self) -> None:
        if self.guests and self.guests > 20:
            raise ValueError(f"{self.guests} guests are a group: ask the manager")


def mails(count: int) -> Iterator[tuple[str, dict]]:
    """Made-up mails, each with what it says."""
    rng = random.Random(5)
    for i in range(count):
        facts = {"name": f"{rng.choice(NAMES)} {rng.choice(LAST)}", "city": rng.choice(CITIES)}
        facts |= {"date": f"{rng.choice(MONTHS)} {rng.randint(4, 20)}th", "guests": rng.randint(2, 9) if i % 25 else 45}
        yield WORDINGS[i % len(WORDINGS)].format(**facts), facts


@sgl.function
def read_mail(s: sgl.State, mail: str) -> Booking:
    s += sgl.system(sgl.fields(Booking))
    s += sgl.user(mail)
    s += sgl.assistant(sgl.gen("booking", Booking, max_tokens=80))
    return s.get("booking")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300, help="how many mails")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "sgl_batch",
        help="where journal and results are kept",
    )
    parser.add_argument("--kill-after", type=int, metavar="N", help="SIGKILL this process when N rows are done")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    journal, results = args.folder / "journal.jsonl", args.folder / "results.jsonl"
    rows, started = list(mails(args.rows)), time.perf_counter()
    right, failures = 0, []
    with sgl.journal(journal) as backend, results.open("w", encoding="utf-8") as out:
        items = [{"mail": mail} for mail, _ in rows]
        states = read_mail.run_batch(
            items, backend=backend, temperature=0, return_exceptions=True, generator_style=True
        )
        for row, state in enumerate(tqdm(states, total=len(rows))):
            facts = rows[row][1]
            if isinstance(state, Exception):
                failures.append((row, state))
            else:
                right += asdict(state.ret_value) == facts
                out.write(json.dumps({"row": row, **asdict(state.ret_value)}, ensure_ascii=False) + "\n")
            if row + 1 == args.kill_after:
                os.kill(os.getpid(), signal.SIGKILL)  # nothing is closed or flushed: the journal is on the disk already
    for row, error in failures[:3]:
        print(f"row {row}: {str(error).splitlines()[-1]}")
    print(f"{len(failures)} rows failed, {right} of {len(rows) - len(failures)} others are right in every field.")
    print(f"{backend.counts}, in {time.perf_counter() - started:.1f} s; results are in {results}")


if __name__ == "__main__":
    main()

"""How good is a prompt? Scores by field, two wordings side by side, and a page with every row that is wrong.

    python examples/evaluate_extraction.py [--rows 60] [--page evaluation.html] [--journal evaluation.jsonl]

The sentences are held-back rows of SNIPS (CC0). With a journal, a second run computes nothing.
"""

import argparse
import json
from dataclasses import dataclass, fields
from pathlib import Path

import sgl

SAMPLE = Path(__file__).parent / "data/snips_restaurants.json"


@dataclass
class Reservation:
    restaurant_name: str | None = None
    restaurant_type: str | None = None
    party_size_number: str | None = None
    city: str | None = None
    timeRange: str | None = None


@sgl.function
def read(s: sgl.State, text: str, described: bool = True):
    s += sgl.system(sgl.fields(Reservation) if described else "The reservation as JSON.")
    s += sgl.user(text)
    s += sgl.assistant(sgl.gen("reservation", Reservation, max_tokens=100))
    return s.get("reservation")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60, help="how many sentences of the sample")
    parser.add_argument("--page", help="where the page is saved")
    parser.add_argument("--journal", help="a file that keeps what was computed")
    args = parser.parse_args()
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))["rows"][: args.rows]
    rows = [{"text": row["text"]} for row in sample]
    gold = [{field.name: row["slots"].get(field.name) for field in fields(Reservation)} for row in sample]
    bare = sgl.evaluate(read.bind(described=False), rows, gold, journal=args.journal, name="without fields")
    found = sgl.evaluate(read, rows, gold, journal=args.journal, name="with fields")
    print(found, sgl.compare(bare, found), sep="\n\n")
    if args.page:
        print(found.page(args.page))

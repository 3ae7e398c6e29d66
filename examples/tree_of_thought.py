"""Tree search: an invoice is read field by field, the likeliest partial readings are kept, arithmetic has the last
word.

    python examples/tree_of_thought.py [--beams 1 2 4 8] [--documents 30] [--show]

At each node `select` gives the probability of every number in the document; the best `beam` partial readings become
forks, which share all that is computed. Among the complete readings the likeliest with quantity * unit price = total
wins. Beam 1 is greedy reading. The invoices are made up here and are full of numbers that mislead the bundled model. A
larger model makes fewer mistakes; for harder documents the search is the same.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import time
from collections.abc import Iterator
from typing import Any, TypedDict

import sgl

LETTERS = (
    "We delivered {quantity} {thing} on May {day}. Each costs ${unit_price}, so please pay ${total:,} within {days} "
    "days. Invoice {number}.",
    "Invoice {number}: {quantity} {thing}, ${unit_price} apiece. Total ${total:,}. You ordered them on June {day}. "
    "Thank you for being our customer for {days} years!",
    "Dear customer, your order {number} of {quantity} {thing} left our house on April {day}. The price of one is "
    "${unit_price}; the sum of ${total:,} is due in {days} days.",
    "Order {number}, {days} parcels, {quantity} {thing}. Unit price: ${unit_price} (was ${old}). Amount due: "
    "${total:,}.",
    "Hello! The {thing} (${unit_price} each, instead of ${old}) will be with you in {days} days. You took "
    "{quantity} of them, that makes ${total:,}. Your number is {number}.",
)


class Invoice(TypedDict):
    quantity: int
    unit_price: int
    total: int


Reading = dict[str, int]


def letters(count: int) -> Iterator[tuple[str, Reading]]:
    """Made-up invoices with the right reading of each."""
    rng = random.Random(4)
    for i in range(count):
        quantity, price = rng.randint(2, 40), rng.randint(5, 300)
        facts = {"quantity": quantity, "unit_price": price, "total": quantity * price}
        noise = {
            "day": rng.randint(1, 28),
            "days": rng.randint(2, 30),
            "number": rng.randint(1000, 9999),
            "old": price + rng.randint(3, 60),
        }
        yield (
            LETTERS[i % len(LETTERS)].format(
                **facts, **noise, thing=rng.choice(["chairs", "lamps", "desks", "phones"])
            ),
            facts,
        )


def adds_up(reading: Reading) -> bool:
    return reading["quantity"] * reading["unit_price"] == reading["total"]


@sgl.function
def read(s: sgl.State, document: str, beam: int) -> Reading:
    """Returns the best reading; of several that add up, and if none does, the likeliest."""
    s += sgl.system(sgl.fields(Invoice)) + sgl.user(document) + sgl.assistant_begin()
    numbers = sorted({found.replace(",", "") for found in re.findall(r"\d[\d,]*(?<!,)", document)})
    kept: list[tuple[float, Any, Reading]] = [(0.0, s, {})]
    for field in Invoice.__annotations__:
        for _, node, reading in kept:
            node += f'{", " if reading else "{"}"{field}": '
        asides = [node.fork()[0] for _, node, _ in kept]
        for aside in asides:  # they choose at the same time: appending does not wait, reading does
            aside += sgl.select("value", numbers)
        grown = []
        for (score, node, reading), aside in zip(kept, asides, strict=True):
            chances = aside.probs("value").items()
            grown += [(score + math.log(max(p, 1e-30)), node, {**reading, field: int(n)}) for n, p in chances]
        best = sorted(grown, key=lambda leaf: -leaf[0])[:beam]
        kept = [(score, node.fork()[0], reading) for score, node, reading in best]
        for _, node, reading in kept:
            node += str(reading[field])
    return max(kept, key=lambda leaf: (adds_up(leaf[2]), leaf[0]))[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 2, 4, 8], help="how many readings are kept")
    parser.add_argument("--documents", type=int, default=30, help="how many invoices")
    parser.add_argument("--show", action="store_true", help="print each invoice and its reading by the widest search")
    args = parser.parse_args()
    documents = list(letters(args.documents))
    with sgl.Engine() as engine:
        readings: list[dict[str, int]] = []
        print("beam     right  add up  computed   cached  seconds")
        for beam in args.beams:
            engine.flush_cache()
            before, started = engine.stats(), time.perf_counter()
            states = read.run_batch(
                [{"document": text, "beam": beam} for text, _ in documents], backend=engine, progress_bar=False
            )
            seconds, spent = time.perf_counter() - started, engine.stats() - before
            readings = [state.ret_value for state in states]
            right = sum(reading == facts for reading, (_, facts) in zip(readings, documents, strict=True))
            print(
                f"{beam:4} {right:3} of {len(documents):2}  {sum(map(adds_up, readings)):6}  "
                f"{spent.computed_tokens:8,} {spent.cached_tokens:8,}  {seconds:7.1f}"
            )
    for (text, facts), reading in zip(documents, readings if args.show else [], strict=args.show):
        print(f"\n{text}\n{'right' if reading == facts else 'WRONG'}: {reading}")


if __name__ == "__main__":
    main()

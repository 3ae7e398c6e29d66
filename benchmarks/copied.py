"""Copied values: the automaton of 100,000 characters, masks beside those of JSON schemas, garbled values, and scores.

    python benchmarks/copied.py [--vocabularies FILE.gguf ...] [--values 10000]

The text is that of the guides in docs/. Masks are those along quotes of it,
and along random texts of a schema, whose states are mostly known. Vocabularies are GGUF files; the
bundled model's is always there. Values are written by the bundled model at temperature 1.5; one is garbled if it is no
piece of its document. Scores are of the dialogues of examples/data (SGD, development set, which the model was not
trained on): text slots with and without copying.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import extract_bookings

import sgl
from sgl import grammars
from sgl.grammars.copied.text_pieces import TextPieces

ROOT = Path(__file__).resolve().parents[1]
PIECE = {"type": "string", "x-copied": "words"}
ORDER = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "city": {"type": "string", "maxLength": 40},
        "day": {"type": "string", "format": "date"},
        "guests": {"type": "integer", "minimum": 1, "maximum": 20},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "city", "day", "guests", "tags"],
    "additionalProperties": False,
}


def document(size: int = 100_000) -> str:
    text = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    return text[:size]


def build(text: str) -> None:
    """The least and the median of 15, in milliseconds of this thread."""
    for unit in ("words", "characters"):
        seconds = []
        for _ in range(15):
            started = time.thread_time()
            pieces = TextPieces(text, unit)
            made = pieces.native
            seconds.append(1e3 * (time.thread_time() - started))
        assert made is not None
        print(
            f"{len(text):,} characters, {unit}: {min(seconds):.1f} ms (median {statistics.median(seconds):.1f}), "
            f"{pieces.memory() / 1e6:.1f} MB"
        )


def vocabularies(files: list[Path]) -> dict[str, grammars.Vocabulary]:
    from sgl.runtime.loading.gguf_files.gguf_file import read_parts
    from sgl.runtime.text.tokenizer_files.gguf_tokenizer import gguf_tokenizer

    found = {"nano": grammars.Vocabulary.from_tokenizer(sgl.Engine().tokenizer)}
    for file in files:
        made = gguf_tokenizer(read_parts(file)[0].metadata, file.stem)
        found[file.stem.removeprefix("ggml-vocab-")] = grammars.Vocabulary.from_tokenizer(made)
    return found


def timed_masks(grammar: grammars.Grammar, texts: list[bytes]) -> str:
    """Microseconds of the masks along the texts, tokens taken greedily: of all, and of those of new states."""
    grammar.prepared()  # the first mask makes the tables of the vocabulary
    vocabulary, known = grammar.vocabulary, grammar.automaton.masks
    times: list[float] = []
    unseen: list[float] = []
    longest = max(map(len, vocabulary.tokens))
    ids = {vocabulary.tokens[i]: i for i in vocabulary.text_ids}
    for text in texts:
        matcher, at = grammar.matcher(), 0
        while at < len(text):
            before, started = len(known), time.perf_counter()
            matcher.mask()
            times.append(1e6 * (time.perf_counter() - started))
            if len(known) > before:
                unseen.append(times[-1])
            size = next(size for size in range(min(longest, len(text) - at), 0, -1) if text[at : at + size] in ids)
            assert matcher.accept(ids[text[at : at + size]]), (text, at)
            at += size
    return (
        f"mean {statistics.mean(times):.1f}; {len(unseen)} of {len(times)} are of new states: median "
        f"{statistics.median(unseen):.1f}, mean {statistics.mean(unseen):.1f}, p99 "
        f"{sorted(unseen)[len(unseen) * 99 // 100]:.0f}, largest {max(unseen):.0f}"
    )


def quotes(text: str, rng: random.Random, count: int) -> list[bytes]:
    """Lists of quotes of one to twelve words."""
    pieces = TextPieces(text, "words")
    starts, ends = (flags.nonzero()[0] for flags in pieces.boundaries[:2])
    found = []
    for _ in range(count):
        chosen = []
        for _ in range(3):
            start = int(rng.choice(starts[:-20]))
            end = int(ends[ends.searchsorted(start + 1) + rng.randrange(12)])
            chosen.append(text[start:end])
        found.append(json.dumps(chosen, ensure_ascii=False).encode())
    return found


def orders(rng: random.Random, count: int) -> list[bytes]:
    def words(most: int) -> str:
        return "".join(rng.choice("abcdefghij klmnopqrst") for _ in range(rng.randint(1, most)))

    made = [
        {"name": words(60), "city": words(30), "day": f"2026-0{rng.randint(1, 9)}-1{rng.randint(0, 9)}", "guests": 4}
        | {"tags": [words(20) for _ in range(3)]}
        for _ in range(count)
    ]
    return [json.dumps(one).encode() for one in made]


def masks(text: str, files: list[Path]) -> None:
    rng = random.Random(1)
    lists, texts = quotes(text, rng, 200), orders(rng, 200)
    for name, vocabulary in vocabularies(files).items():
        schema = {"type": "array", "items": PIECE, "x-copied-from": text}
        copied = timed_masks(grammars.compile_json_schema(schema, vocabulary), lists)
        plain = timed_masks(grammars.compile_json_schema(ORDER, vocabulary), texts)
        print(f"masks, {name} ({vocabulary.size:,} tokens), us: copied {copied}; JSON schema {plain}")


@sgl.function
def write(s: Any, text: str, kind: Any) -> None:
    s += sgl.system("List names and things of the text as JSON.") + sgl.user(text)
    s += sgl.assistant(sgl.gen("values", kind, max_tokens=120, temperature=1.5, close_at_limit=True))


def garbled(count: int) -> None:
    rng, text = random.Random(2), document(400_000)
    totals = {}
    for label, kind in (("copied", list[sgl.Quote]), ("free", list[str])):
        values = wrong = 0
        while values < count:
            starts = [rng.randrange(len(text) - 600) for _ in range(64)]
            items = [{"text": text[start : start + rng.randint(60, 500)], "kind": kind} for start in starts]
            states = write.run_batch(items, seed=rng.randrange(1 << 30), return_exceptions=True)
            for item, state in zip(items, states, strict=True):
                if isinstance(state, Exception):
                    raise state
                found = json.loads(state["values"])
                values += len(found)
                wrong += sum(one not in item["text"] for one in found)
        totals[label] = wrong, values
    for label, (wrong, values) in totals.items():
        print(f"{label}: {wrong:,} garbled of {values:,} values")


def slots_to_copy(service: dict[str, Any], text: str) -> dict[str, Any]:
    schema = extract_bookings.slots(service, "dontcare")
    for name, slot in schema["properties"].items():
        if slot.get("type") == "string":
            schema["properties"][name] = {"anyOf": [PIECE, {"const": "dontcare"}], "description": slot["description"]}
    return {**schema, "x-copied-from": text}


@sgl.function
def track(s: Any, turns: Any, service: dict[str, Any], schema: dict[str, Any]) -> None:
    s += sgl.system(extract_bookings.TASK) + sgl.user(extract_bookings.transcript(turns))
    s += sgl.user(sgl.fields(extract_bookings.slots(service), extract_bookings.about(service)))
    s += sgl.assistant(sgl.select("intent", extract_bookings.intents(service)))
    s += sgl.assistant(sgl.gen("slots", max_tokens=200, json_schema=schema))


def spoken(dialogue: dict[str, Any]) -> str:
    return extract_bookings.transcript(dialogue["turns"])


def scores() -> None:
    """Slots of the dialogues that are texts: how many are as annotated, also by being left out."""
    sample = json.loads(extract_bookings.SAMPLE.read_text(encoding="utf-8"))
    services = {service["service_name"]: service for service in sample["services"]}
    asked = [(d, services[name], name) for d in sample["dialogues"] for name in d["expected"]]
    for label, schema_of in (
        ("free", lambda service, text: extract_bookings.slots(service, "dontcare")),
        ("copied", slots_to_copy),
    ):
        items = [
            {
                "turns": d["turns"],
                "service": service,
                "schema": schema_of(service, extract_bookings.transcript(d["turns"])),
            }
            for d, service, _ in asked
        ]
        started = time.perf_counter()
        states = track.run_batch(items, temperature=0)
        right = total = found = outside = 0
        for (d, service, name), state in zip(asked, states, strict=True):
            text = spoken(d)
            free = {slot["name"] for slot in service["slots"] if not slot["is_categorical"]}
            made = {k: v for k, v in json.loads(state["slots"]).items() if k in free}
            gold = {k: v for k, v in d["expected"][name]["slots"].items() if k in free}
            names = made.keys() | gold.keys()
            total += len(names)
            right += sum(made.get(k, "").lower() == gold.get(k, "").lower() for k in names)
            found += len(made)
            outside += sum(value not in text and value != "dontcare" for value in made.values())
        print(
            f"{label}: {right} of {total} text slots as annotated; {outside} of {found} values are not in the text; "
            f"{time.perf_counter() - started:.1f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", nargs="*", type=Path, default=[], help="GGUF files")
    parser.add_argument("--values", type=int, default=10_000, help="how many values are written and judged")
    args = parser.parse_args()
    text = document()
    build(text)
    masks(text, args.vocabularies)
    scores()
    garbled(args.values)


if __name__ == "__main__":
    main()

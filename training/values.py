"""Random values of every kind that documents and requests contain, in a text form and a JSON form."""

from __future__ import annotations

import gzip
import json
import re
import string
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any

HELD_BACK_SNIPS_PERCENT = 5


def read_lists(path: Path = Path(__file__).with_name("words.txt")) -> dict[str, list[str]]:
    """The word lists by name."""
    sections = path.read_text(encoding="utf-8").split("\n[")[1:]
    parts = (section.partition("]") for section in sections)
    return {name: [" ".join(entry.split()) for entry in text.split(",")] for name, _, text in parts}


LISTS = read_lists()
FIRST_NAMES = LISTS["first_names"]
LAST_NAMES = LISTS["last_names"]
WORDS = LISTS["words"]
MONTHS = LISTS["months"]
NUMBER_WORDS = LISTS["number_words"]


Sampled = tuple[str, Any]


@dataclass
class Pools:
    """Names harvested from the public training data, by kind."""

    names: dict[str, list[str]] = field(default_factory=dict)

    def pick(self, kind: str, rng: Random) -> str | None:
        names = self.names.get(kind)
        return rng.choice(names) if names else None


SGD_POOLS = {
    "city": "city city_of_event origin_city destination_city area where_to",
    "company": "restaurant_name hotel_name property_name theater_name stylist_name venue",
    "street": "street_address address venue_address",
    "title": "event_name song_name album movie_name title attraction_name",
    "person": "artist directed_by dentist_name recipient_account_name",
}
SNIPS_POOLS = {
    "city": "city geographic_poi",
    "company": "restaurant_name",
    "title": "object_name movie_name entity_name playlist track album",
    "person": "artist",
    "dish": "served_dish",
    "cuisine": "cuisine",
    "country": "country",
}


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a .jsonl.gz file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def bucket(text: str) -> int:
    """A stable number from 0 to 99 for a text, to hold rows, names and schemas back."""
    return zlib.crc32(text.encode()) % 100


def held_back(utterance: str) -> bool:
    """Whether a SNIPS utterance belongs to the rows that no training sees."""
    return bucket(" ".join(utterance.lower().split())) < HELD_BACK_SNIPS_PERCENT


def load_pools(data: Path) -> Pools:
    """Harvest names from the training parts of SGD and SNIPS."""
    found: dict[str, set[str]] = {}
    words: Counter[str] = Counter()
    kinds = {slot: kind for kind, slots in SGD_POOLS.items() for slot in slots.split()}
    for number, row in enumerate(rows(data / "sgd-train.jsonl.gz")):
        for turn in row["turns"]:
            if number % 4 == 0:
                _count(words, turn["utterance"])
            for result in turn.get("service_results", ()):
                _collect(found, kinds, result)
    kinds = {slot: kind for kind, slots in SNIPS_POOLS.items() for slot in slots.split()}
    for row in rows(data / "snips-train.jsonl.gz"):
        if not held_back(row["text"]):
            _collect(found, kinds, row["slots"])
            _count(words, row["text"])
    for row in rows(data / "gsm8k-train.jsonl.gz"):
        _count(words, row["question"])
    names = {kind: sorted(names) for kind, names in found.items()}
    return Pools({**names, "word": _by_frequency(words)})


def _count(words: Counter[str], text: str) -> None:
    words.update(re.findall(r"(?<![\w'])[a-z]{3,12}(?![\w'])", text))


def _by_frequency(words: Counter[str], least: int = 3) -> list[str]:
    """The words seen often enough, the frequent ones first."""
    return sorted((word for word in words if words[word] >= least), key=lambda word: (-words[word], word))


def _collect(found: dict[str, set[str]], kinds: dict[str, str], values: dict[str, Any]) -> None:
    for slot, value in values.items():
        if slot in kinds and isinstance(value, str) and 1 < len(value) < 48 and "Ã" not in value:
            found.setdefault(kinds[slot], set()).add(value)


class Values:
    """Draws (text, JSON value) pairs of a named kind from a seeded generator.

    `draw("int:1-9")`, `draw("enum:a/b")` and so on; the kinds are the methods below, without their underscore.
    """

    def __init__(self, rng: Random, pools: Pools) -> None:
        self.rng = rng
        self.pools = pools

    def draw(self, kind: str) -> Sampled:
        name, _, argument = kind.partition(":")
        maker: Callable[..., Sampled] | None = getattr(self, f"_{name}", None)
        if maker is None:
            raise ValueError(f"unknown kind of value {kind!r}: add a method to training.values.Values")
        return maker(argument) if argument else maker()

    def _person(self) -> Sampled:
        rng = self.rng
        if rng.random() < 0.15:
            return _same(self.pools.pick("person", rng) or self.invented())
        first = rng.choice(FIRST_NAMES) if rng.random() < 0.7 else self.invented()
        last = rng.choice(LAST_NAMES) if rng.random() < 0.6 else self.invented()
        titled = rng.random() < 0.08
        return _same(f"{rng.choice(['Dr.', 'Mr.', 'Ms.', 'Prof.'])} {last}" if titled else f"{first} {last}")

    def _first(self) -> Sampled:
        return _same(self.rng.choice(FIRST_NAMES) if self.rng.random() < 0.7 else self.invented())

    def invented(self) -> str:
        return "".join(self.rng.choices(LISTS["syllables"], k=self.rng.randint(2, 3))).capitalize()

    def foreign_name(self) -> str:
        """A name that says nothing about its value: a number, random words, or an invented word."""
        rng = self.rng
        words = self.pools.names.get("word") or WORDS
        draw = rng.random()
        if draw < 0.25:
            return f"field_{rng.randint(1, 30)}"
        return "_".join(rng.sample(words, rng.randint(1, 2))) if draw < 0.8 else self.invented().lower()

    def _errand(self) -> Sampled:
        """Something to do, as "water the plants"; never "buy milk", which an example asks for."""
        rng = self.rng
        words = self.pools.names.get("word") or WORDS
        things = LISTS["nouns"] + LISTS["foods"] + LISTS["things"]
        thing = rng.choice(things) if rng.random() < 0.6 else rng.choice(words)
        verb = rng.choice(LISTS["errands"])
        person = self._first()[0]
        about = [
            f"{verb} {thing}",
            f"{verb} the {thing}",
            f"{verb} some {thing}",
            f"{verb} {thing} and {rng.choice(things)}",
            f"{verb} the {rng.choice(words)} {thing}",
            f"{verb} a {thing} for {person}",
            f"call {person}",
            f"write to {person}",
            f"ask {person} about the {thing}",
            f"pay the {thing} bill",
            f"go to the {thing} shop",
        ]
        chosen = rng.choice(about)
        return _same("buy bread" if chosen == "buy milk" else chosen)

    def _contact(self) -> Sampled:
        """A person as one speaks of contacts: mostly the first name alone."""
        draw = self.rng.random()
        if draw < 0.6:
            return self._first()
        return self._person() if draw < 0.9 else _same(self._first()[0].lower())

    def _company(self) -> Sampled:
        rng = self.rng
        if rng.random() < 0.3 and (name := self.pools.pick("company", rng)):
            return _same(name)
        head = rng.choice(WORDS).capitalize() if rng.random() < 0.5 else self.invented()
        middle = f" {rng.choice(WORDS).capitalize()}" if rng.random() < 0.4 else ""
        tail = f" {rng.choice(LISTS['suffixes'])}" if rng.random() < 0.6 else ""
        return _same(head + middle + tail)

    def _city(self) -> Sampled:
        rng = self.rng
        if rng.random() < 0.5 and (name := self.pools.pick("city", rng)):
            return _same(name)
        return _same(rng.choice(LISTS["cities"]) if rng.random() < 0.6 else self.invented())

    def _country(self) -> Sampled:
        return _same(self.rng.choice(LISTS["countries"]))

    def _street(self) -> Sampled:
        rng = self.rng
        if rng.random() < 0.25 and (name := self.pools.pick("street", rng)):
            return _same(name)
        name = rng.choice([self.invented(), rng.choice(WORDS).capitalize(), rng.choice(LAST_NAMES)])
        return _same(f"{rng.randint(1, 999)} {name} {rng.choice(LISTS['streets'])}")

    def _zip(self) -> Sampled:
        return _same("".join(self.rng.choices(string.digits, k=5)))

    def _title(self) -> Sampled:
        rng = self.rng
        if rng.random() < 0.5 and (name := self.pools.pick("title", rng)):
            return _same(name)
        words = [rng.choice(WORDS) for _ in range(rng.randint(1, 3))]
        return _same(" ".join(word.capitalize() for word in words))

    def _topic(self) -> Sampled:
        text = self.rng.choice(LISTS["topics"])
        return _same(text.capitalize() if self.rng.random() < 0.4 else text)

    def _issue(self) -> Sampled:
        return _same(self.rng.choice(LISTS["issues"]))

    def _product(self) -> Sampled:
        rng = self.rng
        noun = rng.choice(LISTS["nouns"])
        name = f"{rng.choice([self.invented(), rng.choice(WORDS).capitalize()])} {noun.capitalize()}"
        return _same(rng.choice([name, f"{name} {rng.randint(2, 990)}", f"{rng.choice(LISTS['colors'])} {noun}"]))

    def _job(self) -> Sampled:
        text = self.rng.choice(LISTS["jobs"])
        return _same(text.title() if self.rng.random() < 0.4 else text)

    def _color(self) -> Sampled:
        return _same(self.rng.choice(LISTS["colors"]))

    def _department(self) -> Sampled:
        return _same(self.rng.choice(LISTS["departments"]))

    def _cuisine(self) -> Sampled:
        return _same(self.pools.pick("cuisine", self.rng) or "Thai")

    def _dish(self) -> Sampled:
        return _same(self.pools.pick("dish", self.rng) or "lentil soup")

    def _email(self) -> Sampled:
        rng = self.rng
        user = rng.choice(FIRST_NAMES + LAST_NAMES).lower().replace("'", "")
        tail = rng.choice(["", str(rng.randint(1, 99)), "." + rng.choice(LAST_NAMES).lower().replace("'", "")])
        return _same(f"{user}{tail}@{rng.choice(WORDS)}{rng.choice(['', 'mail'])}.{rng.choice(LISTS['extensions'])}")

    def _url(self) -> Sampled:
        rng = self.rng
        path = rng.choice(["", "/" + rng.choice(WORDS), f"/{rng.choice(LISTS['nouns'])}/{rng.randint(1, 999)}"])
        return _same(
            f"{rng.choice(['https://', 'www.'])}{rng.choice(WORDS)}{rng.choice(LISTS['nouns'])}.{rng.choice(LISTS['extensions'])}{path}"  # noqa: E501
        )

    def _phone(self) -> Sampled:
        shape = self.rng.choice(
            ["###-###-####", "(###) ###-####", "+## ### ######", "+1 ### ### ####", "0## ### ## ##"]
        )
        return _same("".join(self.rng.choice(string.digits) if c == "#" else c for c in shape))

    def _code(self) -> Sampled:
        rng = self.rng
        shape = rng.choice(
            ["AA-####", "AAA-#####", "#######", "A##-####", "####-AA", "AA####", "#A#A##", "AAAA-##-###"]
        )
        letters = string.ascii_uppercase
        out = (rng.choice(letters) if c == "A" else rng.choice(string.digits) if c == "#" else c for c in shape)
        return _same("".join(out))

    def _version(self) -> Sampled:
        return _same(".".join(str(self.rng.randint(0, 20)) for _ in range(self.rng.randint(2, 3))))

    def _int(self, bounds: str = "1-100") -> Sampled:
        low, high = map(int, bounds.split("-"))
        value = self.rng.randint(low, high)
        if value < len(NUMBER_WORDS) and self.rng.random() < 0.2:
            return NUMBER_WORDS[value], value
        return (f"{value:,}" if value > 9999 and self.rng.random() < 0.4 else str(value)), value

    def _year(self) -> Sampled:
        value = self.rng.randint(1950, 2030)
        return str(value), value

    def _money(self, bounds: str = "5-5000") -> Sampled:
        low, high = map(int, bounds.split("-"))
        whole = self.rng.random() < 0.5
        amount = self.rng.randint(low, high) if whole else round(self.rng.uniform(low, high), 2)
        digits = f"{amount:,}" if whole and self.rng.random() < 0.7 else f"{amount:,.2f}"
        if self.rng.random() < 0.3:
            digits = digits.replace(",", "")
        shape = self.rng.choice(["${}", "${}", "€{}", "£{}", "{} USD", "{} EUR", "{} dollars", "{} euros"])
        return shape.format(digits), _plain_number(float(amount))

    def _percent(self) -> Sampled:
        value = self.rng.randint(1, 100) if self.rng.random() < 0.7 else round(self.rng.uniform(0, 100), 1)
        return f"{value}{self.rng.choice(['%', '%', ' percent'])}", _plain_number(float(value))

    def _float(self, bounds: str = "0-10") -> Sampled:
        low, high = map(int, bounds.split("-"))
        value = round(self.rng.uniform(low, high), self.rng.choice([1, 1, 2]))
        return f"{value:g}", _plain_number(value)

    def _date(self) -> Sampled:
        day = date(2018, 1, 1) + timedelta(days=self.rng.randint(0, 3650))
        return self.spoken_date(day), day.isoformat()

    def spoken_date(self, day: date) -> str:
        month = MONTHS[day.month - 1]
        forms = [
            day.isoformat(),
            f"{month} {day.day}, {day.year}",
            f"{day.day} {month} {day.year}",
            f"{month[:3]} {day.day}, {day.year}",
            f"{day.day:02d} {month[:3]} {day.year}",
            f"{month} {ordinal(day.day)}, {day.year}",
        ]
        return self.rng.choice(forms)

    def _day(self) -> Sampled:
        rng = self.rng
        weekday = rng.choice(LISTS["weekdays"])
        number = rng.randint(1, 28)
        dated = f"{rng.choice(MONTHS)} {rng.choice([ordinal(number), str(number)])}"
        return _same(rng.choice(["today", "tomorrow", weekday, f"next {weekday}", dated, dated, "this weekend"]))

    def _time(self) -> Sampled:
        rng = self.rng
        hour, minute = rng.randint(1, 12), rng.choice(["00", "15", "30", "45", "10", "20"])
        half = rng.choice(["am", "pm"])
        return _same(
            rng.choice([f"{hour}:{minute} {half}", f"{hour} {half}", f"{hour + 8}:{minute}", f"{hour}:{minute}"])
        )

    def _duration(self) -> Sampled:
        unit = self.rng.choice(["minutes", "hours", "days", "weeks", "months"])
        return _same(f"{self.rng.randint(2, 60)} {unit}")

    def _size(self) -> Sampled:
        unit = self.rng.choice(["kg", "g", "cm", "m", "GB", "liters", "sqm", "inches", "km", "miles"])
        return _same(f"{self.rng.randint(1, 500)} {unit}")

    def _enum(self, choices: str) -> Sampled:
        value = self.rng.choice(choices.split("/"))
        text = self.rng.choice([value, value, value.capitalize(), value.upper(), value.lower()])
        return text, value

    def _bool(self) -> Sampled:
        value = self.rng.random() < 0.5
        return ("yes" if value else "no"), value

    def _list(self, kind: str) -> Sampled:
        items = list(dict.fromkeys(str(self.item(kind)) for _ in range(self.rng.randint(1, 4))))
        if len(items) > 1 and self.rng.random() < 0.6:
            return ", ".join(items[:-1]) + " and " + items[-1], items
        return ", ".join(items), items

    def item(self, kind: str) -> str:
        pools = {"skill": LISTS["skills"], "food": LISTS["foods"], "color": LISTS["colors"]}
        if kind in pools:
            return self.rng.choice(pools[kind])
        return self.draw(kind)[0]


def _same(text: str) -> Sampled:
    return text, text


def _plain_number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"

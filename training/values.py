"""Random values of every kind that documents and requests contain, in a text form and a JSON form."""

from __future__ import annotations

import gzip
import json
import string
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any

HELD_BACK_SNIPS_PERCENT = 5

FIRST_NAMES = """Amara Noah Mei Lukas Priya Omar Sofia Daniel Ingrid Kwame Yuki Elena Mateo Fatima Jonas Chloe Arjun
Hannah Diego Aisha Felix Grace Ivan Leila Marco Nadia Oscar Petra Quentin Rosa Samir Tara Umar Vera Wei Ximena Yara
Zoe Anna Ben Clara David Emma Frank Gina Hugo Iris Jack Karen Liam Mia Nora Oliver Paul Ruth Sam Tom Uma Victor Will
Alice Bob Carol Dmitri Eve Fiona George Helen Ian Julia Kofi Lena Mohammed Nina Olga Pedro Rachel Stefan Theo Ursula
Maria John Sarah Michael Linda James Laura Peter Susan Kevin Amy Eric Jane Mark Lisa Steve Diana Carlos Hana Bjorn""".split()
LAST_NAMES = """Okafor Smith Chen Müller Patel Haddad Rossi Kim Larsen Mensah Tanaka Petrova García Ali Weber Dubois Rao
Cohen Silva Khan Novak Murphy Ivanov Rahimi Bianchi Hassan Johansson Fischer Martin Torres Nguyen Brown Jones Lopez
Wilson Anderson Taylor Moore Lee White Harris Clark Lewis Walker Hall Young King Wright Scott Green Baker Adams Nelson
Hill Campbell Mitchell Roberts Carter Phillips Evans Turner Parker Collins Edwards Stewart Morris Schmidt Kowalski
O'Brien Yamamoto Fernández Lindqvist Becker Moreau Costa Romano Park Singh Das Nakamura Vogel Keller Hoffman""".split()
SYLLABLES = """ba be bi bo bra can cor da del dor el en fa fen gar gil ha hol in ja ka kel la lin lo mar mel mi mon na
nor o or pa pen qua ra ren ri ro sa sel so ta tel ti tor u va ven vi wa wil xan yo za zen ster ton ville ford""".split()
WORDS = """north star blue river stone bright cloud green field silver oak summit harbor maple iron pixel solar prime
swift urban golden royal pacific alpine nova delta echo quantum vertex lumen orchard beacon cedar falcon amber coral
meadow granite velvet copper crystal lunar ember frost garden haven island jade kite lotus marble night ocean pearl
quiet rapid sage tiger ultra violet winter zephyr modern classic smart rustic grand little old new wild happy""".split()
NOUNS = """lamp chair table backpack headphones keyboard monitor kettle blender jacket sneakers notebook camera speaker
tent bottle watch wallet mug desk sofa pillow blanket drill hammer bicycle helmet router printer charger tablet phone
vase clock mirror rug bookshelf toaster heater fan scooter guitar piano drum jeans sweater scarf umbrella suitcase
microphone projector grill oven mixer vacuum mattress bench stool cabinet ladder hose shovel candle puzzle""".split()
TOPICS = """budget review quarterly planning product launch security audit team retrospective customer onboarding
interview prep hiring sync design critique roadmap kickoff yoga class piano lesson dentist visit board meeting book
club parent evening sales pipeline data migration website redesign release party training workshop""".split()
ISSUES = """login page shows a blank screen;payment fails with error 502;app crashes on startup;printer does not respond;
password reset email never arrives;screen flickers after update;search returns no results;export produces an empty file;
battery drains within an hour;invoice total is wrong;parcel arrived damaged;wifi drops every few minutes;
video call has no sound;dashboard loads slowly;two charges for one order;button on checkout is not clickable;
sync stops after ten minutes;notifications arrive late;heating makes a loud noise;door lock does not open"""
SKILLS = """Python SQL JavaScript Rust Go Kubernetes Docker Excel Photoshop accounting negotiation welding copywriting
French German Spanish statistics Java React Figma Linux Terraform marketing nursing carpentry plumbing design testing
leadership TypeScript Spark Tableau bookkeeping C++ SAP Salesforce AutoCAD public_speaking project_management""".split()
FOODS = """flour sugar butter eggs milk tomatoes onions garlic basil rice chicken beef salmon tofu spinach carrots potatoes
cheddar olive_oil salt pepper lemons apples bananas walnuts honey yogurt pasta mushrooms lentils chickpeas cream
chocolate vanilla cinnamon ginger coriander parsley beans corn bread ham""".split()
JOBS = """software engineer;nurse;data analyst;project manager;graphic designer;accountant;chef;electrician;teacher;
sales representative;product manager;civil engineer;marketing director;research scientist;truck driver;HR specialist;
customer support agent;pharmacist;security officer;web developer;lab technician;store manager;translator;architect"""
COLORS = """red blue green black white silver navy beige grey orange purple teal olive pink yellow brown""".split()
DEPARTMENTS = "sales engineering finance marketing legal operations support logistics procurement research".split()
MONTHS = """January February March April May June July August September October November December""".split()
NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
STREETS = "Street Avenue Road Lane Drive Boulevard Way Court Place Square".split()
SUFFIXES = ["Inc", "Ltd", "GmbH", "LLC", "Group", "& Co", "Labs", "Partners", "Foods", "Systems", "Studio", "Bank", "Clinic"]
COUNTRIES = """France Japan Brazil Kenya Canada Germany India Mexico Norway Peru Poland Spain Sweden Turkey Vietnam Italy
Egypt Chile Ghana Ireland Portugal Greece Morocco Thailand Austria Belgium Denmark Finland Iceland Nigeria""".split()
CITIES = """Oslo Lisbon Nairobi Toronto Berlin Kyoto Austin Denver Lagos Madrid Prague Vienna Warsaw Zurich Dublin Hanoi
Lima Quito Accra Mumbai Delhi Osaka Seoul Turin Lyon Porto Ghent Bergen Leeds Boston""".split()
EXTENSIONS = ["com", "org", "net", "io", "example", "co.uk", "de"]

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
    kinds = {slot: kind for kind, slots in SGD_POOLS.items() for slot in slots.split()}
    for row in rows(data / "sgd-train.jsonl.gz"):
        for turn in row["turns"]:
            for result in turn.get("service_results", ()):
                _collect(found, kinds, result)
    kinds = {slot: kind for kind, slots in SNIPS_POOLS.items() for slot in slots.split()}
    for row in rows(data / "snips-train.jsonl.gz"):
        if not held_back(row["text"]):
            _collect(found, kinds, row["slots"])
    return Pools({kind: sorted(names) for kind, names in found.items()})


def _collect(found: dict[str, set[str]], kinds: dict[str, str], values: dict[str, Any]) -> None:
    for slot, value in values.items():
        if slot in kinds and isinstance(value, str) and 1 < len(value) < 48 and "Ã" not in value:
            found.setdefault(kinds[slot], set()).add(value)


class Values:
    """Draws (text, JSON value) pairs of a named kind from a seeded generator.

    `draw("int:1-9")`, `draw("enum:a/b")` and so on; the kinds are the methods below without underscore.
    """

    def __init__(self, rng: Random, pools: Pools) -> None:
        self.rng = rng
        self.pools = pools

    def draw(self, kind: str) -> Sampled:
        name, _, argument = kind.partition(":")
        maker: Callable[..., Sampled] | None = getattr(self, name, None)
        if maker is None:
            raise ValueError(f"unknown kind of value {kind!r}: add a method to training.values.Values")
        return maker(argument) if argument else maker()

    def person(self) -> Sampled:
        rng = self.rng
        if rng.random() < 0.15:
            return _same(self.pools.pick("person", rng) or self.invented())
        first = rng.choice(FIRST_NAMES) if rng.random() < 0.7 else self.invented()
        last = rng.choice(LAST_NAMES) if rng.random() < 0.6 else self.invented()
        titled = rng.random() < 0.08
        return _same(f"{rng.choice(['Dr.', 'Mr.', 'Ms.', 'Prof.'])} {last}" if titled else f"{first} {last}")

    def first(self) -> Sampled:
        return _same(self.rng.choice(FIRST_NAMES) if self.rng.random() < 0.7 else self.invented())

    def invented(self) -> str:
        return "".join(self.rng.choices(SYLLABLES, k=self.rng.randint(2, 3))).capitalize()

    def company(self) -> Sampled:
        rng = self.rng
        if rng.random() < 0.3 and (name := self.pools.pick("company", rng)):
            return _same(name)
        head = rng.choice(WORDS).capitalize() if rng.random() < 0.5 else self.invented()
        middle = f" {rng.choice(WORDS).capitalize()}" if rng.random() < 0.4 else ""
        tail = f" {rng.choice(SUFFIXES)}" if rng.random() < 0.6 else ""
        return _same(head + middle + tail)

    def city(self) -> Sampled:
        rng = self.rng
        if rng.random() < 0.5 and (name := self.pools.pick("city", rng)):
            return _same(name)
        return _same(rng.choice(CITIES) if rng.random() < 0.6 else self.invented())

    def country(self) -> Sampled:
        return _same(self.rng.choice(COUNTRIES))

    def street(self) -> Sampled:
        rng = self.rng
        if rng.random() < 0.25 and (name := self.pools.pick("street", rng)):
            return _same(name)
        name = rng.choice([self.invented(), rng.choice(WORDS).capitalize(), rng.choice(LAST_NAMES)])
        return _same(f"{rng.randint(1, 999)} {name} {rng.choice(STREETS)}")

    def zip(self) -> Sampled:
        return _same("".join(self.rng.choices(string.digits, k=5)))

    def title(self) -> Sampled:
        rng = self.rng
        if rng.random() < 0.5 and (name := self.pools.pick("title", rng)):
            return _same(name)
        words = [rng.choice(WORDS) for _ in range(rng.randint(1, 3))]
        return _same(" ".join(word.capitalize() for word in words))

    def topic(self) -> Sampled:
        start = self.rng.randrange(len(TOPICS) // 2) * 2
        text = " ".join(TOPICS[start : start + 2])
        return _same(text.capitalize() if self.rng.random() < 0.4 else text)

    def issue(self) -> Sampled:
        return _same(self.rng.choice(ISSUES.split(";")).strip())

    def product(self) -> Sampled:
        rng = self.rng
        noun = rng.choice(NOUNS)
        name = f"{rng.choice([self.invented(), rng.choice(WORDS).capitalize()])} {noun.capitalize()}"
        return _same(rng.choice([name, f"{name} {rng.randint(2, 990)}", f"{rng.choice(COLORS)} {noun}"]))

    def job(self) -> Sampled:
        text = self.rng.choice(JOBS.split(";")).strip()
        return _same(text.title() if self.rng.random() < 0.4 else text)

    def color(self) -> Sampled:
        return _same(self.rng.choice(COLORS))

    def department(self) -> Sampled:
        return _same(self.rng.choice(DEPARTMENTS))

    def cuisine(self) -> Sampled:
        return _same(self.pools.pick("cuisine", self.rng) or "Thai")

    def dish(self) -> Sampled:
        return _same(self.pools.pick("dish", self.rng) or "lentil soup")

    def email(self) -> Sampled:
        rng = self.rng
        user = rng.choice(FIRST_NAMES + LAST_NAMES).lower().replace("'", "")
        tail = rng.choice(["", str(rng.randint(1, 99)), "." + rng.choice(LAST_NAMES).lower().replace("'", "")])
        return _same(f"{user}{tail}@{rng.choice(WORDS)}{rng.choice(['', 'mail'])}.{rng.choice(EXTENSIONS)}")

    def url(self) -> Sampled:
        rng = self.rng
        path = rng.choice(["", "/" + rng.choice(WORDS), f"/{rng.choice(NOUNS)}/{rng.randint(1, 999)}"])
        return _same(f"{rng.choice(['https://', 'www.'])}{rng.choice(WORDS)}{rng.choice(NOUNS)}.{rng.choice(EXTENSIONS)}{path}")

    def phone(self) -> Sampled:
        shape = self.rng.choice(["###-###-####", "(###) ###-####", "+## ### ######", "+1 ### ### ####", "0## ### ## ##"])
        return _same("".join(self.rng.choice(string.digits) if c == "#" else c for c in shape))

    def code(self) -> Sampled:
        rng = self.rng
        shape = rng.choice(["AA-####", "AAA-#####", "#######", "A##-####", "####-AA", "AA####", "#A#A##", "AAAA-##-###"])
        letters = string.ascii_uppercase
        out = (rng.choice(letters) if c == "A" else rng.choice(string.digits) if c == "#" else c for c in shape)
        return _same("".join(out))

    def version(self) -> Sampled:
        return _same(".".join(str(self.rng.randint(0, 20)) for _ in range(self.rng.randint(2, 3))))

    def int(self, bounds: str = "1-100") -> Sampled:
        low, high = map(int, bounds.split("-"))
        value = self.rng.randint(low, high)
        if value < len(NUMBER_WORDS) and self.rng.random() < 0.2:
            return NUMBER_WORDS[value], value
        return (f"{value:,}" if value > 9999 and self.rng.random() < 0.4 else str(value)), value

    def year(self) -> Sampled:
        value = self.rng.randint(1950, 2030)
        return str(value), value

    def money(self, bounds: str = "5-5000") -> Sampled:
        low, high = map(int, bounds.split("-"))
        whole = self.rng.random() < 0.5
        amount = self.rng.randint(low, high) if whole else round(self.rng.uniform(low, high), 2)
        digits = f"{amount:,}" if whole and self.rng.random() < 0.7 else f"{amount:,.2f}"
        if self.rng.random() < 0.3:
            digits = digits.replace(",", "")
        shape = self.rng.choice(["${}", "${}", "€{}", "£{}", "{} USD", "{} EUR", "{} dollars", "{} euros"])
        return shape.format(digits), _plain_number(float(amount))

    def percent(self) -> Sampled:
        value = self.rng.randint(1, 100) if self.rng.random() < 0.7 else round(self.rng.uniform(0, 100), 1)
        return f"{value}{self.rng.choice(['%', '%', ' percent'])}", _plain_number(float(value))

    def float(self, bounds: str = "0-10") -> Sampled:
        low, high = map(int, bounds.split("-"))
        value = round(self.rng.uniform(low, high), self.rng.choice([1, 1, 2]))
        return f"{value:g}", _plain_number(value)

    def date(self) -> Sampled:
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

    def day(self) -> Sampled:
        rng = self.rng
        weekday = rng.choice("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
        dated = f"{rng.choice(MONTHS)} {rng.choice([ordinal, str])(rng.randint(1, 28))}"
        return _same(rng.choice(["today", "tomorrow", weekday, f"next {weekday}", dated, dated, "this weekend"]))

    def time(self) -> Sampled:
        rng = self.rng
        hour, minute = rng.randint(1, 12), rng.choice(["00", "15", "30", "45", "10", "20"])
        half = rng.choice(["am", "pm"])
        return _same(
            rng.choice([f"{hour}:{minute} {half}", f"{hour} {half}", f"{hour + 8}:{minute}", f"{hour}:{minute}"])
        )

    def duration(self) -> Sampled:
        unit = self.rng.choice(["minutes", "hours", "days", "weeks", "months"])
        return _same(f"{self.rng.randint(2, 60)} {unit}")

    def size(self) -> Sampled:
        unit = self.rng.choice(["kg", "g", "cm", "m", "GB", "liters", "sqm", "inches", "km", "miles"])
        return _same(f"{self.rng.randint(1, 500)} {unit}")

    def enum(self, choices: str) -> Sampled:
        value = self.rng.choice(choices.split("/"))
        text = self.rng.choice([value, value, value.capitalize(), value.upper(), value.lower()])
        return text, value

    def bool(self) -> Sampled:
        value = self.rng.random() < 0.5
        return ("yes" if value else "no"), value

    def list(self, kind: str) -> Sampled:
        items = list(dict.fromkeys(str(self.item(kind)) for _ in range(self.rng.randint(1, 4))))
        if len(items) > 1 and self.rng.random() < 0.6:
            return ", ".join(items[:-1]) + " and " + items[-1], items
        return ", ".join(items), items

    def item(self, kind: str) -> str:
        pools = {"skill": SKILLS, "food": FOODS, "color": COLORS}
        if kind in pools:
            return self.rng.choice(pools[kind]).replace("_", " ")
        return self.draw(kind)[0]


def _same(text: str) -> Sampled:
    return text, text


def _plain_number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"

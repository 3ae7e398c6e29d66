"""Short free messages with everyday fields: a one-line mail that books, orders or asks, and what it states."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from sgl.runtime.nano.nano_prompts import Message, PromptField
from training.lexicon import NAME_STYLES, Lexicon
from training.synthetic import Extraction
from training.values import Pools, Values


@dataclass(frozen=True)
class Slot:
    """A fact of a message: names of its field, its kind of value, what it is."""

    names: tuple[str, ...]
    kind: str
    description: str


SLOTS = {
    "name": Slot(
        ("name", "name", "full name", "guest", "customer", "contact name", "sender", "who", "person"),
        "person",
        "who writes",
    ),
    "city": Slot(("city", "city", "place", "town", "location", "destination", "where"), "city", "where it should be"),
    "day": Slot(("date", "date", "day", "when", "arrival", "check in date", "booking date"), "day", "on which day"),
    "count": Slot(
        ("guests", "guests", "people", "number of guests", "party size", "persons", "seats"),
        "int:2-9",
        "how many people",
    ),
    "time": Slot(("time", "hour", "start time", "at what time"), "time", "at which hour"),
    "phone": Slot(("phone", "phone number", "telephone", "contact number"), "phone", "number to call"),
    "email": Slot(("email", "mail", "email address", "reply to"), "email", "mail address"),
    "nights": Slot(("nights", "number of nights", "length of stay", "stay"), "int:1-14", "how many nights"),
    "company": Slot(("company", "employer", "organization", "firm"), "company", "firm of the writer"),
    "price": Slot(("budget", "price", "amount", "most to pay"), "money:20-900", "how much money"),
}
NAMING = (
    "my name is {name}",
    "I am {name}",
    "this is {name}",
    "{name} here",
    "I'm {name}",
    "{name} speaking",
    "the booking is for {name}",
    "put it under the name {name}",
    "my name's {name}",
    "it is for {name}",
    "I am {name} from {company}",
    "this is {name} of {company}",
)
WISHES = (
    "We would like {thing} in {city} on {day} for {count} {people}",
    "I need {thing} in {city} for {count} {people} on {day}",
    "I want to book {thing} in {city} for {count} {people}",
    "Could we have {thing} for {count} {people} on {day}",
    "We are {count} {people} and need {thing} in {city}",
    "Please book {thing} in {city} {day}",
    "I am looking for {thing} in {city} for {nights} nights",
    "We come to {city} on {day}, {count} {people}, and stay {nights} nights",
    "Do you have {thing} for {count} {people} {day} at {time}",
    "Can I get {thing} in {city} on {day} at {time}",
    "{thing} for {count} {people} in {city}, {day}, please",
    "We plan a trip to {city} with {count} {people} on {day}",
    "Reserve {thing} on {day} for {count} {people}",
    "I would like {thing} {day} at {time} in {city}",
    "{count} {people} want {thing} in {city} on {day}",
    "We'd like {thing} in {city}, arriving {day}, for {count} {people}",
)
CLOSINGS = (
    "Call me at {phone}",
    "My number is {phone}",
    "You can write to {email}",
    "Reply to {email}",
    "We can spend {price}",
    "Our budget is {price}",
    "It should cost {price} at most",
    "You reach me under {phone}",
    "Send the confirmation to {email}",
)
THINGS = (
    "a room",
    "a table",
    "a flat",
    "a hotel",
    "a tour",
    "an apartment",
    "a guide",
    "a double room",
    "seats",
    "a place to stay",
    "a meeting room",
    "a cabin",
)
PEOPLE = ("guests", "people", "persons", "adults", "friends", "of us")
OPENINGS = ("", "", "Hello, ", "Hi, ", "Good morning, ", "Dear Sir or Madam, ", "Hi there! ", "Hello! ")
ENDINGS = (
    "",
    "",
    " Thank you!",
    " Thanks!",
    " Best regards",
    " Many thanks in advance.",
    " Looking forward to your answer.",
)


class Notes:
    """Composes extraction from short messages from a seeded generator."""

    def __init__(self, rng: Random, pools: Pools) -> None:
        self.rng = rng
        self.values = Values(rng, pools)
        self.lexicon = Lexicon(rng, pools)

    def messages(self) -> list[Message]:
        return self.make().messages()

    def make(self) -> Extraction:
        rng = self.rng
        frames = [rng.choice(NAMING)] if rng.random() < 0.8 else []
        frames.append(rng.choice(WISHES))
        if rng.random() < 0.3:
            frames.append(rng.choice(CLOSINGS))
        if rng.random() < 0.3:
            rng.shuffle(frames)
        drawn = {key: self.values.draw(slot.kind) for key, slot in SLOTS.items()}
        stated = {key for frame in frames for key in SLOTS if "{" + key + "}" in frame}
        document = self._written(frames, {key: text for key, (text, _) in drawn.items()})
        others = [key for key in SLOTS if key not in stated]
        asked = rng.sample(sorted(stated), rng.randint(1, len(stated))) + rng.sample(others, rng.choice([0, 0, 1, 2]))
        rng.shuffle(asked)
        style = self.lexicon.style(NAME_STYLES)
        described = rng.choice([0.0, 0.0, 0.5, 1.0])
        fields = {key: self._field(SLOTS[key], style(rng.choice(SLOTS[key].names).split()), described) for key in asked}
        answer = {
            field.name: drawn[key][0] if field.kind == "string" else drawn[key][1]
            for key, field in fields.items()
            if key in stated
        }
        return Extraction(tuple(fields.values()), document, answer)

    def _written(self, frames: list[str], texts: dict[str, str]) -> str:
        rng = self.rng
        sentences = [frame.format(thing=rng.choice(THINGS), people=rng.choice(PEOPLE), **texts) for frame in frames]
        kept = [frame.startswith(("{name}", "{count}")) for frame in frames]
        sentences = [s if keep else s[0].upper() + s[1:] for s, keep in zip(sentences, kept, strict=True)]
        opening = rng.choice(OPENINGS)
        if opening.endswith(", ") and frames[0] in NAMING and not frames[0].startswith(("I", "{")):
            sentences[0] = sentences[0][0].lower() + sentences[0][1:]
        text = opening + rng.choice([". ", ". ", "! ", "\n"]).join(sentences) + "." + rng.choice(ENDINGS)
        return text

    def _field(self, slot: Slot, name: str, described: float) -> PromptField:
        numeric = slot.kind.startswith(("int", "money")) and self.rng.random() < 0.8
        kind = {"int": "integer", "money": "number"}[slot.kind.partition(":")[0]] if numeric else "string"
        return PromptField(name, kind, slot.description if self.rng.random() < described else "")

"""Extraction by schemas that no catalogue knows: names and labels of random words, to teach copying by name.

A schema asks for values by name or description only, the document states them under labels of the same
words (other case, order, number, short forms).  Distractors share words with what is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from sgl.runtime.nano.nano_prompts import EXTRACT_TASK, Message, PromptField
from training.layouts import Layouts, Statement
from training.lexicon import NAME_STYLES, Lexicon, Words, plural, shortened
from training.synthetic import TASK_WORDINGS, Extraction
from training.values import LISTS, Pools, Values

DRAWN_KINDS = {
    "person": 4,
    "first": 2,
    "company": 2,
    "city": 3,
    "country": 1,
    "street": 1,
    "title": 2,
    "code": 4,
    "version": 1,
    "email": 1,
    "url": 1,
    "phone": 1,
    "zip": 1,
    "day": 2,
    "time": 2,
    "duration": 1,
    "size": 1,
    "date": 5,
    "int:1-99": 5,
    "int:100-250000": 3,
    "year": 1,
    "money": 4,
    "percent": 2,
    "float": 2,
    "list:skill": 1,
    "list:food": 1,
    "list:first": 1,
    "words": 12,
    "options": 9,
    "flag": 6,
    "list:words": 2,
}
JSON_KINDS = {
    "int": "integer",
    "year": "integer",
    "money": "number",
    "percent": "number",
    "float": "number",
    "date": "date",
    "list": "list",
    "options": "enum",
    "flag": "boolean",
}
SHARED_OPTIONS = (
    ("low", "medium", "high"),
    ("small", "medium", "large"),
    ("yes", "no"),
    ("open", "closed"),
    ("new", "used"),
    ("A", "B", "C", "D"),
    ("1", "2", "3", "4", "5"),
    ("left", "right"),
    ("daily", "weekly", "monthly"),
    ("never", "sometimes", "always"),
)
TIES = {
    "by": ("person", ("{p}_by", "who_{p}_it", "{p}_by", "by_whom_{p}"), "who {p} it"),
    "in": ("city", ("{p}_in", "where_{p}", "{p}_place", "place_{p}"), "where it was {p}"),
    "on": ("date", ("{p}_on", "when_{p}", "{p}_date", "date_{p}"), "day on which it was {p}"),
    "at": ("time", ("{p}_at", "{p}_time", "time_{p}"), "hour at which it was {p}"),
    "for": ("money", ("{p}_for", "{p}_price", "price_{p}"), "price for which it was {p}"),
    "from": ("country", ("{p}_from", "from_where_{p}"), "country from which it was {p}"),
    "to": ("company", ("{p}_to", "to_whom_{p}"), "to whom it was {p}"),
    "with": ("code", ("{p}_with", "with_what_{p}"), "what it was {p} with"),
}
"""How a value hangs on a participle: its kind, names of the field, its description."""
GLOSSES = (
    "the {l}",
    "{l}",
    "{l} of the {w}",
    "what is given as {l}",
    "the {l} if stated",
    "which {l} it has",
    "value of the {l}",
    "{l} as written",
    "stated {l}",
    "tells the {l}",
    "here the {l} goes",
    "the one called {l}",
)
FLAG_GLOSSES = (
    "whether there is {l}",
    "whether it is {l}",
    "true if {l}",
    "if {l} is stated",
    "is it {l}",
    "{l} or not",
)


@dataclass(frozen=True)
class Item:
    """A value with the words that name it; `shown` is its text in the document."""

    words: Words
    kind: str
    text: str
    value: Any
    shown: str = ""
    choices: tuple[str, ...] = ()
    tie: str = ""
    prefix: Words = ()

    @property
    def base(self) -> str:
        return self.kind.partition(":")[0]


class Labels:
    """Composes extraction examples with arbitrary schemas from a seeded generator."""

    def __init__(self, rng: Random, pools: Pools) -> None:
        self.rng = rng
        self.values = Values(rng, pools)
        self.lexicon = Lexicon(rng, pools)
        self.layouts = Layouts(rng, self.lexicon)

    def messages(self) -> list[Message]:
        plain = self.rng.random() < 0.75
        return self.make().messages(EXTRACT_TASK if plain else self.rng.choice(TASK_WORDINGS))

    def make(self) -> Extraction:
        rng = self.rng
        self.lexicon.restart()
        items = self._items(rng.randint(1, 9))
        absent = [self._absent(items) for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 3]))]
        groups = self._groups() if rng.random() < 0.2 else {}
        stated = items + [item for members in groups.values() for item in members]
        loose = self._all_words_differ(stated + absent)
        document = self.layouts.write([self._statement(item, loose) for item in stated])
        return self._question(items, absent, groups, document, loose)

    # --- what there is to say ---

    def _items(self, count: int) -> list[Item]:
        rng = self.rng
        items = self._tied() if rng.random() < 0.25 else []
        if rng.random() < 0.3:
            head = self.lexicon.word()
            first = rng.random() < 0.3
            for _ in range(rng.randint(2, 3)):
                own = self.lexicon.word()
                items.append(self.item((head, own) if first else (own, head)))
        while len(items) < count:
            items.append(self.item(self.lexicon.phrase(1, rng.choice([1, 2, 2, 3]))))
        return items

    def _tied(self) -> list[Item]:
        participle = self.lexicon.participle()
        chosen = self.rng.sample(list(TIES), self.rng.randint(1, 3))
        return [self.item((participle, tie), TIES[tie][0], tie) for tie in chosen]

    def item(self, words: Words, kind: str | None = None, tie: str = "") -> Item:
        """An item of the kind, or of a random one."""
        rng = self.rng
        kind = kind or rng.choices(list(DRAWN_KINDS), weights=list(DRAWN_KINDS.values()))[0]
        match kind:
            case "words":
                text = self._some_words()
                return Item(words, kind, text, text, text)
            case "list:words":
                found = [self._some_words(2) for _ in range(rng.randint(1, 4))]
                text = ", ".join(found[:-1]) + " and " + found[-1] if len(found) > 1 else found[0]
                return Item(words, kind, text, found, text)
            case "options":
                return self._choice(words)
            case "flag":
                value = rng.random() < 0.5
                text = "yes" if value else "no"
                return Item(words, kind, text, value, text)
        text, value = self.values.draw(kind)
        counted = kind.startswith("int") and not tie and rng.random() < 0.25
        return Item(words, kind, text, value, f"{text} {self._unit()}" if counted else text, tie=tie)

    def _unit(self) -> str:
        return self.rng.choice(
            ["kg", "cm", "km", "hours", "meters", "points", "degrees", "pieces", plural(self.lexicon.word())]
        )

    def _some_words(self, most: int = 4) -> str:
        rng = self.rng
        words = " ".join(self.lexicon.phrase(1, rng.choice([1, 2, 2, most])))
        return rng.choice([words, words, words.title(), words.title(), words.capitalize(), words.upper()])

    def _choice(self, words: Words) -> Item:
        rng = self.rng
        options = list(rng.choice(SHARED_OPTIONS))
        if rng.random() < 0.3 and self.lexicon.used.isdisjoint(options):
            self.lexicon.used.update(options)
        else:
            options = [" ".join(self.lexicon.phrase(1, rng.choice([1, 1, 1, 2]))) for _ in range(rng.randint(2, 5))]
        rng.shuffle(options)
        value = rng.choice(options)
        text = rng.choice([value, value, value.capitalize(), value.upper()])
        return Item(words, "options", text, value, text, tuple(options))

    def _absent(self, items: list[Item]) -> Item:
        """Something that is not stated; now and then its name shares a word with what is."""
        plain = [item for item in items if not item.tie and len(item.words) > 1]
        if plain and self.rng.random() < 0.4:
            words = list(self.rng.choice(plain).words)
            words[self.rng.randrange(len(words))] = self.lexicon.word()
            return self.item(tuple(words))
        return self.item(self.lexicon.phrase(1, 2))

    def _groups(self) -> dict[Words, list[Item]]:
        """One object, or two with the same fields: their labels in the document begin with the object's name."""
        rng = self.rng
        names = [self.lexicon.phrase(1, rng.choice([1, 1, 2])) for _ in range(rng.choice([1, 1, 2]))]
        fields = [self.item(self.lexicon.phrase(1, 2)) for _ in range(rng.randint(1, 4))]
        return {
            name: [replace(self.item(f.words, f.kind if f.kind != "options" else "words"), prefix=name) for f in fields]
            for name in names
        }

    @staticmethod
    def _all_words_differ(items: list[Item]) -> bool:
        words = [word for item in items for word in item.words]
        return len(words) == len(set(words)) and not any(item.prefix for item in items)

    def _statement(self, item: Item, loose: bool) -> Statement:
        rng = self.rng
        words = item.words
        if item.tie:
            return Statement(words, item.shown, item.tie)
        if loose and rng.random() < 0.15:
            words = self._other_form(words)
        if item.base in ("flag", "options"):
            return Statement((*item.prefix, *words), item.shown, {"flag": "flag", "options": "chosen"}[item.base])
        wrong = self.item(words, item.kind).text if rng.random() < 0.15 else ""
        counted = item.base == "int" and item.shown == item.text
        if counted and len(words[-1]) > 2:
            words = (*words[:-1], plural(words[-1])) if rng.random() < 0.6 else words
        return Statement((*item.prefix, *words), item.shown, "counted" if counted else "plain", wrong)

    def _other_form(self, words: Words) -> Words:
        """The words turned round, shortened, in the plural, or without one of them."""
        rng = self.rng
        draw = rng.random()
        if draw < 0.35:
            return (*words[:-1], shortened(words[-1], rng))
        if draw < 0.6:
            return (*words[:-1], plural(words[-1]))
        if len(words) > 1 and draw < 0.8:
            return words[1:] if rng.random() < 0.5 else words[:-1]
        return (*words[1:], words[0])

    # --- the schema and its answer ---

    def _question(
        self,
        items: list[Item],
        absent: list[Item],
        groups: dict[Words, list[Item]],
        document: str,
        loose: bool,
    ) -> Extraction:
        rng = self.rng
        asked: list[Item | Words] = [*rng.sample(items, rng.randint(0 if groups or absent else 1, len(items)))]
        asked += [*absent, *groups]
        rng.shuffle(asked)
        schema = _Schema(self, loose)
        fields: list[PromptField] = []
        answer: dict[str, Any] = {}
        for ask in asked:
            if isinstance(ask, Item):
                field, value = schema.field(ask)
            else:
                field, value = schema.group(ask, groups[ask])
            if any(field.name == other.name for other in fields):
                continue
            fields.append(field)
            if not (isinstance(ask, Item) and ask in absent):
                answer[field.name] = value
        return Extraction(tuple(fields), document, answer)

    def other_words(self, words: Words, loose: bool) -> Words:
        return self._other_form(words) if loose and self.rng.random() < 0.12 else words


class _Schema:
    """Names and describes the fields of one schema, all in one style."""

    def __init__(self, labels: Labels, loose: bool) -> None:
        self.labels = labels
        self.loose = loose
        self.rng = labels.rng
        self.style = labels.lexicon.style(NAME_STYLES)
        self.opaque = self.rng.choice([0.0, 0.0, 0.15, 0.5])
        self.described = self.rng.choice([0.0, 0.0, 0.5, 1.0])

    def field(self, item: Item) -> tuple[PromptField, Any]:
        """The field that asks for an item, and the value of its answer."""
        rng = self.rng
        opaque = rng.random() < self.opaque
        words = self._opaque() if opaque else self._name(item)
        described = opaque or rng.random() < self.described
        field = PromptField(self.style(words), description=self._gloss(item) if described else "")
        as_text = item.base not in ("list", "flag") and item.shown == item.text and rng.random() < 0.15
        if as_text:
            return field, item.text
        return replace(field, kind=JSON_KINDS.get(item.base, "string"), choices=item.choices), item.value

    def group(self, words: Words, members: list[Item]) -> tuple[PromptField, dict[str, Any]]:
        inner = _Schema(self.labels, False)
        inner.style = self.style
        pairs = {field.name: (field, value) for field, value in map(inner.field, members)}
        fields = tuple(field for field, _ in pairs.values())
        return PromptField(self.style(words), "object", fields=fields), {
            name: value for name, (_, value) in pairs.items()
        }

    def _opaque(self) -> Words:
        """A name that says nothing: the description has to."""
        draw = self.rng.random()
        if draw < 0.3:
            return (self.rng.choice(["field", "value", "item", "key", "slot"]), str(self.rng.randint(1, 40)))
        return self.labels.lexicon.phrase(1, 2)

    def _name(self, item: Item) -> Words:
        rng = self.rng
        if item.tie:
            return tuple(rng.choice(TIES[item.tie][1]).format(p=item.words[0]).split("_"))
        words = self.labels.other_words(item.words, self.loose)
        if item.base == "flag" and rng.random() < 0.5:
            return (rng.choice(["is", "has", "with"]), *words)
        if len(words) == 1 and rng.random() < 0.06:
            return (*words, rng.choice(["value", "info", "given"]))
        return words

    def _gloss(self, item: Item) -> str:
        rng = self.rng
        if item.tie:
            return TIES[item.tie][2].format(p=item.words[0])
        words = " ".join(item.words)
        if len(item.words) == 2 and rng.random() < 0.3:
            words = f"{item.words[1]} of the {item.words[0]}"
        glosses = FLAG_GLOSSES if item.base == "flag" else GLOSSES
        return rng.choice(glosses).format(l=words, w=rng.choice(LISTS["nouns"]))

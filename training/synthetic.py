"""Documents of many kinds with schemas to fill from them: invoices, tickets, CVs, logs, mails ...

A document states some facts of a domain (concepts.txt), in one of several layouts.  A schema asks for
a few of them, and for some that are not there, under other names than the document uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import Any, Literal

from sgl.runtime.nano.nano_prompts import EXTRACT_TASK, Message, PromptField, extraction, json_text, message
from training.values import FIRST_NAMES, Pools, Values, bucket

Split = Literal["train", "names", "domains"]

UNSEEN_DOMAINS = frozenset({"vehicle", "course"})
UNSEEN_NAMES_PERCENT = 14
CONCEPTS = Path(__file__).with_name("concepts.txt")

TASK_WORDINGS = (
    "Extract the following fields as JSON.",
    "Fill in this form from the text. Answer with JSON only.",
    "Read the text and return JSON with these keys, if present.",
    "Extract the data from the document.",
    "You extract structured data. Give a JSON object with these fields.",
    "Extract as JSON:",
)
FILLERS = (
    "Thank you for your patience.",
    "Please let us know if you have questions.",
    "We hope you are well.",
    "As discussed on the phone.",
    "More details will follow.",
    "Have a nice day.",
    "All information without warranty.",
    "Please keep this for your records.",
    "This message was created automatically.",
    "See the attachment for details.",
    "It was a pleasure to talk to you.",
    "Here is what I know so far.",
    "Sorry for the late answer.",
    "Let me sum it up.",
    "That should be everything.",
    "I will keep you posted.",
)
GREETINGS = ("Hi", "Hello", "Dear", "Good morning", "Hey")
FAREWELLS = ("Best regards", "Kind regards", "Thanks", "Cheers", "Yours sincerely", "Best")
CHATTER = (
    "ok",
    "got it",
    "thanks!",
    "and?",
    "anything else?",
    "sounds good",
    "one moment",
    "sure",
    "noted",
    "great",
)


@dataclass(frozen=True)
class Concept:
    """Something a document can state: its names, what it is, its kind of value, how sentences say it."""

    domain: str
    names: tuple[str, ...]
    description: str
    kind: str
    sentences: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.names[0]

    @cached_property
    def seen_names(self) -> tuple[str, ...]:
        return self.names[:1] + tuple(name for name in self.names[1:] if not self._unseen(name))

    @cached_property
    def unseen_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.names[1:] if self._unseen(name))

    def _unseen(self, name: str) -> bool:
        return bucket(f"{self.key}/{name}") < UNSEEN_NAMES_PERCENT


@dataclass(frozen=True)
class Group:
    """An object that a schema may ask for: names for it and the keys of the concepts inside."""

    names: tuple[str, ...]
    members: tuple[str, ...]


@dataclass(frozen=True)
class Catalogue:
    """All concepts by domain, with the titles of the domains and the groups."""

    domains: dict[str, tuple[Concept, ...]]
    titles: dict[str, tuple[str, ...]]
    groups: tuple[Group, ...]

    def find(self, key: str) -> Concept:
        return next(c for concepts in self.domains.values() for c in concepts if c.key == key)


@dataclass(frozen=True)
class Fact:
    """A concept with the value that the document states, as text and as JSON."""

    concept: Concept
    text: str
    value: Any


@dataclass(frozen=True)
class Extraction:
    """One example: what is asked, the document, the right answer."""

    fields: tuple[PromptField, ...]
    document: str
    answer: dict[str, Any]

    def messages(self, task: str = EXTRACT_TASK) -> list[Message]:
        return [*extraction(self.fields, self.document, task), message("assistant", json_text(self.answer))]


def load_catalogue(path: Path = CONCEPTS) -> Catalogue:
    domains: dict[str, tuple[Concept, ...]] = {}
    titles: dict[str, tuple[str, ...]] = {}
    groups: list[Group] = []
    domain = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            domain, _, rest = line[1:].partition("]")
            titles[domain] = _split(rest, ",")
        elif domain == "object" and line:
            groups.append(_parse_group(line))
        elif line and not line.startswith("#"):
            domains[domain] = (*domains.get(domain, ()), _parse_concept(domain, line))
    return Catalogue(domains, titles, tuple(groups))


def _parse_concept(domain: str, line: str) -> Concept:
    names, description, kind, sentences = (part.strip() for part in line.split(" | "))
    return Concept(domain, _split(names, ","), description, kind, _split(sentences, ";"))


def _parse_group(line: str) -> Group:
    members, _, names = line.partition("|")
    return Group(_split(names, ","), tuple(members.partition(":")[2].split()))


def _split(text: str, separator: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(separator) if part.strip())


class Documents:
    """Composes extraction examples from a seeded generator."""

    def __init__(self, rng: Random, pools: Pools, catalogue: Catalogue, split: Split = "train") -> None:
        self.rng = rng
        self.values = Values(rng, pools)
        self.catalogue = catalogue
        self.split = split
        self.domains = [d for d in catalogue.domains if (d in UNSEEN_DOMAINS) == (split == "domains")]

    def make(self) -> Extraction:
        rng = self.rng
        domain = rng.choice(self.domains)
        known = list(self.catalogue.domains[domain])
        rng.shuffle(known)
        stated = rng.randint(3, min(11, len(known)))
        facts = [self.fact(concept) for concept in known[:stated]]
        group = self._group(facts)
        document = self.write(domain, facts)
        absent = known[stated : stated + rng.choice([0, 0, 1, 2])]
        return self._question(facts, absent, group, document)

    def fact(self, concept: Concept) -> Fact:
        text, value = self.values.draw(concept.kind)
        return Fact(concept, text, value)

    def messages(self) -> list[Message]:
        plain = self.rng.random() < 0.7
        return self.make().messages(EXTRACT_TASK if plain else self.rng.choice(TASK_WORDINGS))

    def _group(self, facts: list[Fact]) -> Group | None:
        """Sometimes an object is asked for: its members then join the facts that the document states."""
        if self.rng.random() > 0.25:
            return None
        group = self.rng.choice(self.catalogue.groups)
        stated = {fact.concept.key for fact in facts}
        for key in group.members:
            concept = self.catalogue.find(key)
            if self.split != "domains" and concept.domain in UNSEEN_DOMAINS:
                return None
            if key not in stated:
                facts.append(self.fact(concept))
        return group

    # --- the schema and its answer ---

    def _question(self, facts: list[Fact], absent: list[Concept], group: Group | None, document: str) -> Extraction:
        rng = self.rng
        inside = set(group.members) if group else set()
        loose = [fact for fact in facts if fact.concept.key not in inside]
        asked: list[Fact | Concept | Group] = [*rng.sample(loose, rng.randint(0 if group else 1, min(8, len(loose))))]
        asked += absent
        asked += [group] if group else []
        rng.shuffle(asked)
        names = _Names(self, [fact.concept for fact in facts] + absent)
        fields, answer = [], {}
        for item in asked:
            field, value = self._asked(item, facts, names)
            if field is not None:
                fields.append(field)
                answer.update({} if value is None else {field.name: value})
        return Extraction(tuple(fields), document, answer)

    def _asked(self, item: Fact | Concept | Group, facts: list[Fact], names: _Names) -> tuple[PromptField | None, Any]:
        match item:
            case Group():
                return self._asked_group(item, facts, names)
            case Fact():
                return self._asked_fact(item, names)
            case Concept():
                return names.field(item), None

    def _asked_group(self, group: Group, facts: list[Fact], names: _Names) -> tuple[PromptField | None, Any]:
        inner_names = _Names(self, names.around, names.style)
        members = [fact for key in group.members for fact in facts if fact.concept.key == key]
        pairs = [self._asked_fact(fact, inner_names) for fact in members]
        fields = tuple(field for field, _ in pairs if field)
        name = names.take(group.names)
        if name is None or not fields:
            return None, None
        return PromptField(name, "object", fields=fields), {field.name: value for field, value in pairs if field}

    def _asked_fact(self, fact: Fact, names: _Names) -> tuple[PromptField | None, Any]:
        field = names.field(fact.concept)
        if field is None:
            return None, None
        return field, fact.text if field.kind == "string" else fact.value

    # --- the document ---

    def write(self, domain: str, facts: list[Fact]) -> str:
        layouts: dict[Callable[[str, list[Fact]], str], int] = {
            self._form: 4,
            self._prose: 4,
            self._mail: 3,
            self._chat: 2,
            self._mixed: 3,
            self._log: 1,
            self._table: 1,
            self._html: 1,
        }
        layout = self.rng.choices(list(layouts), weights=list(layouts.values()))[0]
        order = list(facts)
        self.rng.shuffle(order)
        return layout(domain, order)

    def sentence(self, fact: Fact) -> str:
        sentences = fact.concept.sentences
        if fact.concept.kind == "bool":
            sign = "+" if fact.value else "-"
            sentences = tuple(s[1:].strip() for s in sentences if s.startswith(sign))
        return self.rng.choice(sentences).replace("{v}", fact.text)

    def _labelled(self, facts: list[Fact], style: Callable[[str], str]) -> list[tuple[str, str]]:
        names = _Names(self, [fact.concept for fact in facts], label=True)
        labels = [(names.take(names.clear_names(fact.concept)) or fact.concept.key, fact) for fact in facts]
        return [(style(label), self._labelled_text(fact)) for label, fact in labels]

    def _labelled_text(self, fact: Fact) -> str:
        if fact.concept.kind == "bool":
            return self.rng.choice([("no", "yes"), ("No", "Yes"), ("false", "true")])[bool(fact.value)]
        return fact.text

    def _form(self, domain: str, facts: list[Fact]) -> str:
        separator = self.rng.choice([": ", ": ", ":\n", " - ", " = ", "\t"])
        lines = [separator.join(pair) for pair in self._labelled(facts, self.label_style())]
        head = [self._title(domain)] if self.rng.random() < 0.6 else []
        return "\n".join([*head, *lines])

    def _prose(self, domain: str, facts: list[Fact]) -> str:
        sentences = [self.sentence(fact) for fact in facts]
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            sentences.insert(self.rng.randint(0, len(sentences)), self.rng.choice(FILLERS))
        if len(sentences) > 4 and self.rng.random() < 0.3:
            half = len(sentences) // 2
            return " ".join(sentences[:half]) + "\n\n" + " ".join(sentences[half:])
        return " ".join(sentences)

    def _mail(self, domain: str, facts: list[Fact]) -> str:
        rng = self.rng
        head = f"Subject: {self._title(domain)}\n\n" if rng.random() < 0.5 else ""
        greeting = f"{rng.choice(GREETINGS)} {rng.choice(FIRST_NAMES)},"
        farewell = f"{rng.choice(FAREWELLS)},\n{rng.choice(FIRST_NAMES)}"
        return f"{head}{greeting}\n\n{self._prose(domain, facts)}\n\n{farewell}"

    def _chat(self, domain: str, facts: list[Fact]) -> str:
        rng = self.rng
        people = rng.sample(FIRST_NAMES, 2)
        lines = []
        for fact in facts:
            if rng.random() < 0.3:
                lines.append(f"{rng.choice(people)}: {rng.choice(CHATTER)}")
            lines.append(f"{rng.choice(people)}: {self.sentence(fact)}")
        return "\n".join(lines)

    def _mixed(self, domain: str, facts: list[Fact]) -> str:
        cut = self.rng.randint(0, len(facts))
        parts = [self._prose(domain, facts[:cut]), self._form(domain, facts[cut:])]
        self.rng.shuffle(parts)
        return "\n\n".join(part for part in parts if part)

    def _log(self, domain: str, facts: list[Fact]) -> str:
        pairs = self._labelled(facts, str)
        quoted = [f'{name}="{text}"' if " " in text else f"{name}={text}" for name, text in pairs]
        return " ".join(quoted) if self.rng.random() < 0.7 else "; ".join(quoted)

    def _table(self, domain: str, facts: list[Fact]) -> str:
        pairs = self._labelled(facts, self.label_style())
        if self.rng.random() < 0.5:
            return "\n".join(f"| {name} | {text} |" for name, text in pairs)
        names, texts = zip(*pairs, strict=True)
        return " | ".join(names) + "\n" + " | ".join(texts)

    def _html(self, domain: str, facts: list[Fact]) -> str:
        shape = self.rng.choice(["<li><b>{}</b> {}</li>", "<dt>{}</dt><dd>{}</dd>", "<p>{}: {}</p>", "**{}**: {}"])
        return "\n".join(shape.format(*pair) for pair in self._labelled(facts, self.label_style()))

    def _title(self, domain: str) -> str:
        title = self.rng.choice(self.catalogue.titles[domain])
        return self.rng.choice([title.capitalize(), title.title(), title.upper(), title])

    def label_style(self) -> Callable[[str], str]:
        def spaced(name: str, shape: Callable[[str], str]) -> str:
            return shape(name.replace("_", " "))

        return partial(spaced, shape=self.rng.choice([str.capitalize, str.title, str.upper, str.lower]))


class _Names:
    """Hands out names for fields, each once, and clear among the concepts that are around."""

    def __init__(
        self, documents: Documents, around: list[Concept], style: str | None = None, label: bool = False
    ) -> None:
        self.rng = documents.rng
        self.split = documents.split
        self.around = around
        self.label = label
        self.style = style or self.rng.choices(["snake", "camel", "spaced", "title"], [14, 4, 1, 1])[0]
        self.described = self.rng.choice([0.0, 0.5, 0.5, 1.0])
        self.foreign = self.rng.choice([0.02, 0.02, 0.02, 0.6]) if self.split == "train" and not label else 0.0
        self.invent = documents.values.foreign_name
        self.taken: set[str] = set()

    def field(self, concept: Concept) -> PromptField | None:
        """A field that asks for the concept; ambiguous names get a description; None when all are taken."""
        clear = self.clear_names(concept)
        nameless = self.foreign > 0 and self.rng.random() < self.foreign
        ambiguous = nameless or not clear or self.rng.random() < 0.15
        pool = self.names_of(concept) if ambiguous else clear
        name = self.take((self.invent(),) if nameless else pool)
        if name is None:
            return None
        described = ambiguous or self.rng.random() < self.described
        return self._typed(PromptField(name, description=concept.description if described else ""), concept)

    def names_of(self, concept: Concept) -> tuple[str, ...]:
        if self.split == "train" or self.label:
            return concept.seen_names
        return concept.unseen_names if self.split == "names" and concept.unseen_names else concept.names

    def clear_names(self, concept: Concept) -> tuple[str, ...]:
        others = {name for other in self.around if other is not concept for name in other.names}
        return tuple(name for name in self.names_of(concept) if name not in others)

    def take(self, names: tuple[str, ...]) -> str | None:
        free = [name for name in map(self._styled, names) if name not in self.taken]
        if not free:
            return None
        name = self.rng.choice(free)
        self.taken.add(name)
        return name

    def _styled(self, name: str) -> str:
        words = name.split("_")
        match "snake" if self.label else self.style:
            case "camel":
                return words[0] + "".join(word.capitalize() for word in words[1:])
            case "spaced":
                return " ".join(words)
            case "title":
                return " ".join(words).capitalize()
            case _:
                return name

    def _typed(self, field: PromptField, concept: Concept) -> PromptField:
        """Asks for the JSON kind of the concept, or now and then for the text as it stands."""
        kind, _, argument = concept.kind.partition(":")
        as_text = self.rng.random() < (0.5 if kind == "date" else 0.2)
        if kind == "enum" and not as_text:
            choices = argument.split("/")
            self.rng.shuffle(choices)
            return replace(field, kind="enum", choices=tuple(choices))
        if kind in ("bool", "list"):
            return replace(field, kind={"bool": "boolean", "list": "list"}[kind])
        if as_text:
            return field
        kinds = {
            "int": "integer",
            "year": "integer",
            "money": "number",
            "percent": "number",
            "float": "number",
        }
        return replace(field, kind="date" if kind == "date" else kinds.get(kind, "string"))


def documents(rng: Random, pools: Pools, split: Split = "train") -> Documents:
    """The composer over the catalogue of this package."""
    return Documents(rng, pools, load_catalogue(), split)

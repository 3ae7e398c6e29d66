"""Documents for labelled values: forms, tables, markup, logs, running text, mails and chats.

A statement is a label with the text of its value.  Every layout shows each statement once and keeps the
text of the value as it is, so that an answer can be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from training.lexicon import LABEL_STYLES, Lexicon, Words
from training.synthetic import CHATTER, FAREWELLS, FILLERS, GREETINGS
from training.values import FIRST_NAMES

PLAIN = (
    "The {l} is {v}.",
    "The {l} is {v}.",
    "Its {l} is {v}.",
    "{l}: {v}.",
    "It has a {l} of {v}.",
    "We set the {l} to {v}.",
    "{v} is the {l}.",
    "The {l} was changed to {v}.",
    "As {l} we have {v}.",
    "For the {l}, use {v}.",
    "{l} {v}.",
    "Our {l} is {v}.",
    "My {l}: {v}.",
    "I noted {v} as the {l}.",
    "The {l} reads {v}.",
    "{v} was given as {l}.",
    "Regarding the {l}: {v}.",
    "They told me that the {l} would be {v}.",
    "{v}, that is the {l}.",
    "The {l} should be {v}.",
    "You find {v} under {l}.",
    "The {l} ({v}) is known.",
    "It comes with {v} as {l}.",
    "The {l} will be {v}.",
    "{v} ({l}).",
    "What about the {l}? It is {v}.",
    "The new {l} is {v}.",
    "Please write {v} for the {l}.",
    "We agreed on a {l} of {v}.",
    "On the {l}: {v}.",
    "With {l} {v}.",
    "The {l} goes by {v}.",
    "Somebody entered {v} for {l}.",
    "The {l} equals {v}.",
)
COUNTED = (
    "There are {v} {l}.",
    "It has {v} {l}.",
    "{v} {l}.",
    "We counted {v} {l}.",
    "It comes with {v} {l}.",
    "{l}: {v}.",
)
CHOSEN = (
    "It is {v}.",
    "{v}.",
    "We chose {v}.",
    "They took {v}.",
    "It counts as {v}.",
    "{v} {l}.",
    "The {l} is {v}.",
    "{l}: {v}.",
)
CORRECTED = (
    "The {l} is not {w} but {v}.",
    "Not {w} but {v} is the {l}.",
    "The {l} is {v}, not {w}.",
    "{l}: {v} (no longer {w}).",
)
PRESENT = (
    "It has {l}.",
    "There is a {l}.",
    "It comes with {l}.",
    "{l} is available.",
    "It is {l}.",
    "Yes, {l}.",
    "{l} included.",
    "It was {l}.",
    "{l}: yes.",
    "They have a {l}.",
    "{l} is fine.",
    "We saw the {l}.",
)
MISSING = (
    "It has no {l}.",
    "There is no {l}.",
    "It comes without {l}.",
    "{l} is not available.",
    "It is not {l}.",
    "No {l}.",
    "{l} not included.",
    "It was never {l}.",
    "{l}: no.",
    "They do not have a {l}.",
    "{l} is not fine.",
    "We saw no {l}.",
)
SEPARATORS = (": ", ": ", ": ", " = ", "=", " - ", ":\n", "\t", " -> ", " | ", " .... ", ":", " : ")
BULLETS = ("- ", "* ", "• ", "+ ", "> ")
MARKUP = (
    "<li><b>{}</b> {}</li>",
    "<tr><td>{}</td><td>{}</td></tr>",
    "**{}**: {}",
    "**{}** {}",
    "## {}\n{}",
    "<p>{}: {}</p>",
    "<dt>{}</dt><dd>{}</dd>",
    "[{}] {}",
    "_{}_: {}",
    "# {}\n{}\n",
    "What is the {}? {}",
)


OPENING_WORDS = (
    "The",
    "It",
    "Its",
    "We",
    "As",
    "For",
    "Our",
    "My",
    "They",
    "You",
    "There",
    "This",
    "With",
    "On",
    "No",
    "Somebody",
)


def _inner(sentence: str) -> str:
    """The sentence as it goes on after a comma."""
    return sentence[0].lower() + sentence[1:] if sentence.split(" ")[0] in OPENING_WORDS else sentence


@dataclass(frozen=True)
class Statement:
    """What a document says in one place.

    `form` is how it can be said: plain, counted (a number), chosen (one of known options), flag (yes or
    no), or the preposition that ties the value to a participle, as "by" in "painted by Ruth Weber".
    """

    words: Words
    text: str
    form: str = "plain"
    wrong: str = ""

    @property
    def present(self) -> bool:
        """Whether a flag is set."""
        return self.text == "yes"


class Layouts:
    """Writes statements as a document."""

    def __init__(self, rng: Random, lexicon: Lexicon) -> None:
        self.rng = rng
        self.lexicon = lexicon

    def write(self, statements: Sequence[Statement]) -> str:
        layouts: dict[Callable[[list[Statement]], str], int] = {
            self._form: 5,
            self._prose: 7,
            self._mail: 2,
            self._chat: 2,
            self._mixed: 3,
            self._line: 2,
            self._bullets: 2,
            self._rows: 2,
            self._columns: 2,
            self._markup: 2,
            self._object: 1,
            self._terse: 1,
        }
        layout = self.rng.choices(list(layouts), weights=list(layouts.values()))[0]
        return layout(self.rng.sample(statements, len(statements)))

    # --- labels beside values ---

    def _pairs(self, statements: list[Statement]) -> list[tuple[str, str]]:
        style = self.lexicon.style(LABEL_STYLES)
        yes, no = self.rng.choice([("yes", "no"), ("Yes", "No"), ("true", "false"), ("on", "off"), ("Y", "N")])
        return [(style(s.words), (yes if s.present else no) if s.form == "flag" else s.text) for s in statements]

    def _form(self, statements: list[Statement]) -> str:
        separator = self.rng.choice(SEPARATORS)
        lines = [separator.join(pair) for pair in self._pairs(statements)]
        if len(lines) > 5 and self.rng.random() < 0.3:
            lines.insert(self.rng.randint(2, len(lines) - 1), "")
        return "\n".join([*self._heading(), *lines])

    def _bullets(self, statements: list[Statement]) -> str:
        separator, bullet = self.rng.choice(SEPARATORS[:6]), self.rng.choice(BULLETS)
        numbered = self.rng.random() < 0.25
        lines = [separator.join(pair) for pair in self._pairs(statements)]
        marked = [f"{i}. {line}" if numbered else bullet + line for i, line in enumerate(lines, 1)]
        return "\n".join([*self._heading(), *marked])

    def _line(self, statements: list[Statement]) -> str:
        quoted = [f'{name}="{text}"' if " " in text else f"{name}={text}" for name, text in self._pairs(statements)]
        head = self.rng.choice(["", "INFO ", "[warn] ", f"{self.lexicon.word()}: ", "event "])
        return head + self.rng.choice([" ", "; ", " | ", "&"]).join(quoted)

    def _terse(self, statements: list[Statement]) -> str:
        separator = self.rng.choice(["; ", " / ", "\n", " // "])
        return separator.join(f"{name} {text}" for name, text in self._pairs(statements))

    def _rows(self, statements: list[Statement]) -> str:
        lines = [f"| {name} | {text} |" for name, text in self._pairs(statements)]
        head = [f"| {self.lexicon.word()} | {self.lexicon.word()} |", "|---|---|"] if self.rng.random() < 0.5 else []
        return "\n".join([*head, *lines])

    def _columns(self, statements: list[Statement]) -> str:
        names, texts = zip(*self._pairs(statements), strict=True)
        free = [
            mark
            for mark in (",", ";", "\t", " | ", "; ")
            if not any(mark.strip() in text for text in texts if mark.strip())
        ]
        mark = self.rng.choice(free)
        return mark.join(names) + "\n" + mark.join(texts)

    def _markup(self, statements: list[Statement]) -> str:
        shape = self.rng.choice(MARKUP)
        return "\n".join(shape.format(*pair) for pair in self._pairs(statements))

    def _object(self, statements: list[Statement]) -> str:
        pairs = self._pairs(statements)
        joint = self.rng.choice([", ", ",\n  "])
        return "{" + joint.join(f'"{name}": "{text}"' for name, text in pairs) + "}"

    def _heading(self) -> list[str]:
        if self.rng.random() < 0.5:
            return []
        title = " ".join(self.lexicon.phrase(1, 2))
        return [self.rng.choice([title.upper(), title.title(), f"# {title}", f"--- {title} ---", title.capitalize()])]

    # --- running text ---

    def _prose(self, statements: list[Statement]) -> str:
        sentences = self.sentences(statements)
        for _ in range(self.rng.choice([0, 0, 0, 1, 2])):
            sentences.insert(self.rng.randint(0, len(sentences)), self.rng.choice(FILLERS))
        return " ".join(sentences)

    def sentences(self, statements: Sequence[Statement]) -> list[str]:
        """The statements in order; neighbours are sometimes joined into one sentence."""
        rng = self.rng
        sentences = [self.sentence(statement) for statement in statements]
        joined: list[str] = []
        for sentence in sentences:
            if joined and rng.random() < 0.2 and joined[-1].count(".") == 1 and joined[-1].endswith("."):
                link = rng.choice([" and ", ", ", "; ", ", and ", ", but "])
                joined[-1] = joined[-1][:-1] + link + _inner(sentence)
            else:
                joined.append(sentence)
        return joined

    def sentence(self, statement: Statement) -> str:
        rng = self.rng
        label = self.spoken(statement)
        frames: tuple[str, ...]
        match statement.form:
            case "plain":
                frames = CORRECTED if statement.wrong and rng.random() < 0.5 else PLAIN
            case "counted":
                frames = PLAIN if rng.random() < 0.5 else COUNTED
            case "chosen":
                frames = PLAIN if rng.random() < 0.4 else CHOSEN
            case "flag":
                frames = PRESENT if statement.present else MISSING
            case _:
                return self._told(statement)
        return self._filled(rng.choice(frames), l=label, v=statement.text, w=statement.wrong)

    def spoken(self, statement: Statement) -> str:
        """The label inside a sentence: in lower case, sometimes turned round as in "height of the tower"."""
        words = statement.words
        if len(words) == 2 and statement.form == "plain" and self.rng.random() < 0.25:
            link = self.rng.choice(["of the", "of", "of this"])
            return f"{words[1]} {link} {words[0]}"
        if len(words) == 2 and statement.form == "plain" and self.rng.random() < 0.08:
            return f"{words[0]}'s {words[1]}"
        return " ".join(words)

    def _told(self, statement: Statement) -> str:
        """A sentence of a participle: "It was painted by Ruth Weber."."""
        participle, preposition = statement.words
        frames = ["It was {p} {b} {v}.", "{p} {b} {v}.", "This was {p} {b} {v}.", "It has been {p} {b} {v}."]
        if preposition == "by":
            frames += ["{v} {p} it.", "{v} has {p} it.", "It was {v} who {p} it."]
        else:
            frames += ["They {p} it {b} {v}.", "{b} {v} it was {p}.", "We {p} this {b} {v}."]
        return self._filled(self.rng.choice(frames), p=participle, b=preposition, v=statement.text)

    def _filled(self, frame: str, **texts: str) -> str:
        """The frame with its texts; a value at its beginning keeps its letter case."""
        sentence = frame.format(**texts)
        if frame.startswith("{v}") or self.rng.random() < 0.1:
            return sentence
        return sentence[0].upper() + sentence[1:]

    def _mail(self, statements: list[Statement]) -> str:
        rng = self.rng
        body = self._prose(statements) if rng.random() < 0.7 else self._form(statements)
        greeting = f"{rng.choice(GREETINGS)} {rng.choice(FIRST_NAMES)},"
        return f"{greeting}\n\n{body}\n\n{rng.choice(FAREWELLS)},\n{rng.choice(FIRST_NAMES)}"

    def _chat(self, statements: list[Statement]) -> str:
        rng = self.rng
        people = rng.sample(FIRST_NAMES, 2)
        lines = []
        for sentence in self.sentences(statements):
            if rng.random() < 0.25:
                lines.append(f"{rng.choice(people)}: {rng.choice(CHATTER)}")
            lines.append(f"{rng.choice(people)}: {sentence}")
        return "\n".join(lines)

    def _mixed(self, statements: list[Statement]) -> str:
        cut = self.rng.randint(0, len(statements))
        parts = [
            self._prose(statements[:cut]) if cut else "",
            self._form(statements[cut:]) if cut < len(statements) else "",
        ]
        self.rng.shuffle(parts)
        return "\n\n".join(part for part in parts if part)

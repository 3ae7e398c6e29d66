"""Tools that no list knows: names and parameters of random words, look-ups, and tools that keep a note."""

from __future__ import annotations

from random import Random
from typing import Any

from sgl.runtime.nano.nano_prompts import PromptField, PromptTool
from training.exchanges import Exchange, conversation, failure
from training.lexicon import NAME_STYLES, Lexicon, Words
from training.values import LISTS, Pools, Values

KNOWN_ATTRIBUTES = {
    "phone number": "phone",
    "number": "phone",
    "email": "email",
    "mail address": "email",
    "address": "street",
    "birthday": "day",
    "city": "city",
    "job": "job",
    "employer": "company",
}
QUESTIONS = (
    "What is {v}'s {a}?",
    "What is {v}'s {a}?",
    "what's {v}'s {a}",
    "What is the {a} of {v}?",
    "Tell me the {a} of {v}.",
    "Give me {v}'s {a}.",
    "I need {v}'s {a}.",
    "Do you know {v}'s {a}?",
    "Find the {a} of {v}",
    "{v}'s {a}?",
    "Look up the {a} of {v} please",
    "Which {a} has {v}?",
)
LOOKUP_NOTES = (
    "Find the {a} of a {e}",
    "finds the {a} of a {e}",
    "looks up a {e}",
    "Get the {a} for a {e}",
    "tells the {a}",
    "{a} of a {e}",
    "",
)
FOUND = ("{v}'s {a} is {r}.", "The {a} of {v} is {r}.", "{v} has the {a} {r}.", "It is {r}.", "{v}: {r}.")
REMINDERS = (
    "Remind me to {v}.",
    "Remind me to {v}",
    "Please remind me to {v}.",
    "remind me to {v}",
    "Don't let me forget to {v}.",
    "I have to {v}.",
    "I need to {v}, please note it.",
    "Note: {v}",
    "Add to my list: {v}",
    'Put "{v}" on my list.',
    "I must not forget to {v}.",
    "Todo: {v}",
    "Add the task {v}",
    "Write down that I have to {v}.",
    "Can you remind me to {v}?",
    "I want to {v} later, keep it in mind.",
    "Put {v} on the list",
    "Make a note to {v}.",
)
REMINDER_NAMES = (
    "add_todo",
    "add_task",
    "remember",
    "new_reminder",
    "reminder",
    "note_down",
    "save_note",
    "todo_add",
    "add_to_list",
    "create_reminder",
    "keep_note",
    "add_item",
    "make_note",
    "set_reminder",
    "append_task",
    "put_on_list",
)
REMINDER_NOTES = (
    "Add a task to the list of things to do",
    "Adds an item to the list",
    "saves a reminder",
    "Remember a task",
    "Note something down",
    "Add an entry to my tasks",
    "keeps a note",
    "Put a task on the to-do list",
    "Stores what has to be done",
    "",
)
REMINDER_KEYS = (
    "task",
    "task",
    "text",
    "item",
    "note",
    "what",
    "todo",
    "content",
    "reminder",
    "title",
    "entry",
)
NOTED = (
    "I noted: {v}.",
    "Noted: {v}.",
    "I will remind you to {v}.",
    "Added: {v}.",
    "Done, {v} is on your list.",
    'I added "{v}" to your list.',
)
DONE = ("Done.", "It is done, the status is {s}.", "The {n} is {s}.", "OK, {s}.", "Your {n} is {s}.")
STATES = ("ok", "done", "accepted", "queued", "finished", "running", "ready")
PARAMETER_KINDS = {
    "person": PromptField("", "string"),
    "first": PromptField("", "string"),
    "city": PromptField("", "string"),
    "title": PromptField("", "string"),
    "code": PromptField("", "string"),
    "day": PromptField("", "string"),
    "time": PromptField("", "string"),
    "company": PromptField("", "string"),
    "int:1-99": PromptField("", "integer"),
    "int:100-9000": PromptField("", "integer"),
    "float": PromptField("", "number"),
    "email": PromptField("", "string"),
}


class ForeignTools:
    """Composes uses of tools with made-up names from a seeded generator."""

    def __init__(self, rng: Random, pools: Pools) -> None:
        self.rng = rng
        self.values = Values(rng, pools)
        self.lexicon = Lexicon(rng, pools)

    def call(self) -> Exchange:
        self.lexicon.restart()
        return self.rng.choices([self.lookup, self.reminder, self.action], weights=[3, 3, 4])[0]()

    def _snake(self, *words: str) -> str:
        """A name for a tool or parameter, mostly in snake_case."""
        style = self.lexicon.style(NAME_STYLES) if self.rng.random() < 0.3 else "_".join
        name = style([part for word in words for part in word.split()])
        return name.replace(" ", "_")

    # --- what is the phone number of Maria? ---

    def lookup(self) -> Exchange:
        rng = self.rng
        known = rng.random() < 0.5
        attribute = rng.choice(list(KNOWN_ATTRIBUTES)) if known else " ".join(self.lexicon.phrase(1, 2))
        entity = rng.choice(["contact", "person", "customer", "friend", "colleague"]) if known else self.lexicon.word()
        about = (
            rng.choice(["contact", "contact", "person"])
            if known
            else rng.choice(["contact", "company", "title", "code", "city"])
        )
        spoken, result = (
            self.values.draw(about)[0],
            self.values.draw(KNOWN_ATTRIBUTES.get(attribute, "code"))[0],
        )
        names = [
            ("find", entity),
            ("get", entity),
            ("lookup", entity),
            ("get", attribute),
            ("search", entity),
            (entity, attribute),
        ]
        parameter = rng.choice(["name", "name", "name", "who", "person", entity, f"{entity} name", "query"])
        note = rng.choice(LOOKUP_NOTES).format(a=attribute, e=entity)
        tool = PromptTool(self._snake(*rng.choice(names)), note, (PromptField(self._snake(parameter)),))
        arguments = {tool.parameters[0].name: spoken}
        values: dict[str, Any] = {attribute.split()[0] if rng.random() < 0.5 else attribute.replace(" ", "_"): result}
        if rng.random() < 0.6:
            values = {tool.parameters[0].name: spoken, **values}
        answer = rng.choice(FOUND).format(v=spoken, a=attribute, r=result)
        if rng.random() < 0.12:
            values, answer = failure(rng, arguments)
        request = rng.choice(QUESTIONS).format(v=spoken, a=attribute)
        family = "find_contact" if known else tool.name
        return Exchange(family, tool, conversation(request, tool, arguments, values, answer))

    # --- remind me to water the plants ---

    def reminder(self) -> Exchange:
        rng = self.rng
        errand = self.values.draw("errand")[0]
        foreign = rng.random() < 0.3
        name = self._snake(*self.lexicon.phrase(1, 2)) if foreign else rng.choice(REMINDER_NAMES)
        note = rng.choice(REMINDER_NOTES[:-1] if foreign else REMINDER_NOTES)
        key = self.lexicon.word() if rng.random() < 0.15 else rng.choice(REMINDER_KEYS)
        tool = PromptTool(name, note, (PromptField(key),))
        counts: dict[str, Any] = {rng.choice(["id", "open_tasks", "count", "position"]): rng.randint(1, 40)}
        result = rng.choice(
            [counts, {key: errand, **counts}, {"status": rng.choice(STATES)}, {key: errand, "status": "ok"}]
        )
        answer = rng.choice(NOTED).format(v=errand)
        request = rng.choice(REMINDERS).format(v=errand)
        return Exchange("add_todo", tool, conversation(request, tool, {key: errand}, result, answer))

    # --- any verb on any thing, with named values ---

    def action(self) -> Exchange:
        rng = self.rng
        verb, noun = (
            rng.choice([self.lexicon.word(), rng.choice(LISTS["errands"])]),
            " ".join(self.lexicon.phrase(1, 2)),
        )
        drawn = [(self.lexicon.phrase(1, 2), kind) for kind in rng.sample(list(PARAMETER_KINDS), rng.randint(0, 4))]
        stated = [(words, self.values.draw(kind)) for words, kind in drawn if rng.random() < 0.85]
        fields = [PromptField(self._snake(*words), PARAMETER_KINDS[kind].kind) for words, kind in drawn]
        notes = [f"{verb} the {noun}", f"{verb} a {noun}", f"used to {verb} the {noun}", f"{noun}: {verb}"]
        opaque = rng.random() < 0.25
        name = self._snake(*self.lexicon.phrase(1, 2)) if opaque else self._snake(verb, noun)
        tool = PromptTool(name, rng.choice(notes) if opaque or rng.random() < 0.6 else "", tuple(fields))
        values = {words: value for words, (_, value) in stated}
        arguments = {
            field.name: values[words]
            for field, (words, _) in zip(tool.parameters, drawn, strict=True)
            if words in values
        }
        state = rng.choice(STATES)
        answer = rng.choice(DONE).format(n=noun, s=state)
        request = self._request(verb, noun, [(words, text) for words, (text, _) in stated])
        return Exchange(tool.name, tool, conversation(request, tool, arguments, {"status": state}, answer))

    def _request(self, verb: str, noun: str, stated: list[tuple[Words, str]]) -> str:
        rng = self.rng
        opening = rng.choice(
            [
                "{v} the {n}",
                "Please {v} the {n}",
                "{v} a {n}",
                "I want to {v} the {n}",
                "Can you {v} the {n}",
                "{v} {n}",
            ]
        )
        link = rng.choice(
            [
                " with {l} {t}",
                ", {l} {t}",
                ", {l}: {t}",
                " and {l} {t}",
                ", the {l} is {t}",
                ", {t} as {l}",
                ", {l}={t}",
            ]
        )
        parts = [link.format(l=" ".join(words), t=text) for words, text in rng.sample(stated, len(stated))]
        text = opening.format(v=verb, n=noun) + "".join(parts)
        return text[0].upper() + text[1:] if rng.random() < 0.8 else text

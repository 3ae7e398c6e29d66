"""General manners: small talk, labels for short texts, questions on a text."""

from __future__ import annotations

from random import Random

from sgl.runtime.nano.nano_prompts import CHAT_TASK, Message, label_choice, message, question_on
from training.synthetic import Catalogue, Documents
from training.values import LISTS, Pools

SMALL_TALK: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("Hi", "Hello", "Hey there", "Hello!", "Good morning", "hi", "Good evening"),
        ("Hello! How can I help you?", "Hi! What can I do for you?"),
    ),
    (
        ("How are you?", "how are you doing?", "How is it going?"),
        ("I am fine, thank you. How can I help you?", "Very well, thanks! What can I do for you?"),
    ),
    (
        ("Thanks", "Thank you!", "Thanks a lot", "thank you very much", "Great, thanks"),
        ("You are welcome.", "You're welcome! Anything else?", "My pleasure."),
    ),
    (
        ("Bye", "Goodbye", "See you", "That is all, bye", "Good night"),
        ("Goodbye!", "Have a nice day!", "See you soon."),
    ),
    (
        ("Who are you?", "What is your name?", "what are you"),
        (
            "I am sgl-nano, a small language model.",
            "I am sgl-nano, a small assistant that fills forms and calls tools.",
        ),
    ),
    (
        ("What can you do?", "Help", "How can you help me?", "what are you good at"),
        (
            "I can extract data from texts, choose labels, and call tools.",
            "I fill in forms from texts, pick intents and use tools. I am small and know few facts.",
        ),
    ),
    (
        ("Are you a human?", "Are you a robot?", "Are you real?"),
        ("I am a small language model.", "No human here, just a small language model."),
    ),
    (("Sorry", "I am sorry", "My mistake"), ("No problem.", "That is all right.")),
    (("Nice!", "Great", "Perfect", "Awesome", "Well done"), ("Glad to hear it.", "I am happy to help.")),
    (
        ("I am bored", "Tell me a joke", "Sing a song", "Tell me a story"),
        ("I am better at filling forms than at that.", "I am too small for that, but I can use tools."),
    ),
)

THINGS = LISTS["things"]
FEELINGS = (LISTS["good"], LISTS["bad"], LISTS["plain"])
OPINIONS = (
    "The {t} was {a}.",
    "What a {a} {t}!",
    "I found the {t} {a}.",
    "{a} {t}, {a2} too.",
    "The {t} is {a} and {a2}.",
    "Honestly, a {a} {t}.",
)
LIKES = (
    "I love this {t}.",
    "I really enjoyed the {t}.",
    "I would buy this {t} again.",
    "Best {t} ever.",
    "Happy with my {t}.",
)
DISLIKES = (
    "I hate this {t}.",
    "I want my money back for this {t}.",
    "Never again this {t}.",
    "Worst {t} ever.",
    "The {t} broke after a day.",
    "I did not like the {t} at all.",
)
TOPIC_TEXTS = {
    "sports": (
        "The team won the match {n} to 1.",
        "She scored twice in the final.",
        "The coach praised his players after the game.",
        "The race ends in {c}.",
    ),
    "business": (
        "Shares of {o} rose by {n} percent.",
        "{o} reports a higher profit.",
        "The company {o} cuts {n} jobs.",
        "Banks raise interest rates.",
    ),
    "technology": (
        "{o} releases a new phone.",
        "The update fixes a bug in the software.",
        "A new chip makes computers faster.",
        "Hackers stole data from {o}.",
    ),
    "health": (
        "Doctors advise to sleep {n} hours.",
        "The new vaccine protects from the flu.",
        "The patient recovered in the hospital of {c}.",
        "Vegetables are good for the heart.",
    ),
    "travel": (
        "The hotel in {c} lies at the beach.",
        "Flights to {c} are cheap this month.",
        "Tourists love the old town of {c}.",
        "We took the train to {c}.",
    ),
    "food": (
        "Add {n} eggs and stir the dough.",
        "The soup needs more salt.",
        "The restaurant serves fresh fish.",
        "Bake the bread for {n} minutes.",
    ),
    "politics": (
        "The parliament voted on the new law.",
        "The president met the minister in {c}.",
        "The election takes place in May.",
        "The mayor of {c} resigned.",
    ),
    "music": (
        "The band {o} plays in {c}.",
        "Her new album has {n} songs.",
        "The singer toured with an orchestra.",
        "The concert in {c} was sold out.",
    ),
}
SENTIMENT_LABELS = (
    ("positive", "negative"),
    ("good", "bad"),
    ("positive", "negative", "neutral"),
    ("happy", "unhappy"),
)
YES_NO = (
    ("Is the text about {label}?", "yes", "no"),
    ("Does this text deal with {label}?", "yes", "no"),
    ("Is it true that the topic is {label}?", "true", "false"),
)
WHAT_IS = (
    "What is the {}?",
    "Give me the {}.",
    "Which {} is stated?",
    "{}?",
    "Tell me the {}.",
    "Find the {}.",
)


class Manners:
    """Composes short general tasks from a seeded generator."""

    def __init__(self, rng: Random, pools: Pools, catalogue: Catalogue) -> None:
        self.rng = rng
        self.documents = Documents(rng, pools, catalogue)

    def messages(self) -> list[Message]:
        kinds = [self.talk, self.sentiment, self.topic, self.yes_no, self.question]
        return self.rng.choices(kinds, weights=[1, 2, 2, 2, 5])[0]()

    def talk(self) -> list[Message]:
        rng = self.rng
        turns = [message("system", CHAT_TASK)] if rng.random() < 0.6 else []
        for asked, answers in rng.sample(SMALL_TALK, rng.randint(1, 3)):
            turns += [message("user", rng.choice(asked)), message("assistant", rng.choice(answers))]
        return turns

    def sentiment(self) -> list[Message]:
        rng = self.rng
        labels = rng.choice(SENTIMENT_LABELS)
        chosen = rng.randrange(len(labels))
        text = " ".join(self._opinion(chosen) for _ in range(rng.choice([1, 1, 2])))
        return self._labelled(labels, text, labels[chosen])

    def _opinion(self, feeling: int) -> str:
        rng = self.rng
        words = FEELINGS[feeling]
        frames = OPINIONS + ((LIKES, DISLIKES, ())[feeling])
        text = rng.choice(frames).format(t=rng.choice(THINGS), a=rng.choice(words), a2=rng.choice(words))
        return text[0].upper() + text[1:]

    def topic(self) -> list[Message]:
        labels = self.rng.sample(list(TOPIC_TEXTS), self.rng.randint(2, 6))
        return self._labelled(tuple(labels), self._topic_text(labels[0]), labels[0])

    def yes_no(self) -> list[Message]:
        rng = self.rng
        asked, other = rng.sample(list(TOPIC_TEXTS), 2)
        question, yes, no = rng.choice(YES_NO)
        true = rng.random() < 0.5
        text = self._topic_text(asked if true else other)
        labels = rng.sample([yes, no], 2)
        task = question.format(label=asked)
        return [*label_choice(labels, text, task), message("assistant", yes if true else no)]

    def _topic_text(self, label: str) -> str:
        rng = self.rng
        values = self.documents.values
        count = rng.choice([1, 1, 2])
        texts = rng.sample(TOPIC_TEXTS[label], count)
        drawn = {"n": rng.randint(2, 40), "c": values.draw("city")[0], "o": values.draw("company")[0]}
        return " ".join(text.format_map(drawn) for text in texts)

    def _labelled(self, labels: tuple[str, ...], text: str, label: str) -> list[Message]:
        shuffled = self.rng.sample(labels, len(labels))
        return [*label_choice(shuffled, text), message("assistant", label)]

    def question(self) -> list[Message]:
        """A question for one fact of a document; the answer is the text of the value."""
        rng = self.rng
        documents = self.documents
        domain = rng.choice(documents.domains)
        concepts = rng.sample(documents.catalogue.domains[domain], rng.randint(2, 7))
        facts = [documents.fact(concept) for concept in concepts if concept.kind != "bool"]
        if not facts:
            return self.question()
        fact = facts[0]
        others = {name for other in facts[1:] for name in other.concept.names}
        names = [name for name in fact.concept.seen_names if name not in others] or [fact.concept.description]
        question = rng.choice(WHAT_IS).format(rng.choice(names).replace("_", " "))
        text = documents.write(domain, facts)
        return [*question_on(text, question[0].upper() + question[1:]), message("assistant", fact.text)]

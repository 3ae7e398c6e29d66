"""The checker of guides finds long sentences and words that prose may not use,
and leaves code, tables and links alone.
"""

from __future__ import annotations

from pathlib import Path

import house
import house_prose
import pytest

LONG = "The engine " + "really " * 30 + "runs."
FENCED = "```text\n" + LONG + "\nthe twin lies behind\n```\n"


def found(markdown: str) -> list[str]:
    return list(house_prose.problems("docs/page.md", markdown))


def test_a_page_that_passes():
    page = (
        f"# A title\n\nThe engine runs. It stops, e.g. at 0.92 of 1, 2 ... 9.\n\n{FENCED}\n- An item\n- another one\n"
    )
    assert found(page) == []


def test_a_long_sentence_is_quoted():
    (problem,) = found(f"Short. {LONG} Short again. " + "So is this. " * 20)
    assert problem == f"docs/page.md: a sentence of 33 words, at most 30: {LONG}"


def test_a_sentence_goes_over_lines_but_not_over_paragraphs_items_and_headings():
    words = "one two three four five six seven eight nine ten eleven twelve"
    assert found(f"{words}\n{words}\n{words}")
    for between in ("\n\n", "\n- ", "\n1. ", "\n## ", "\n| a | b |\n", f"\n{FENCED}"):
        assert found(f"{words}{between}{words}{between}{words}") == [], between


def test_the_average_of_a_page():
    sentence = " ".join(["word"] * 25) + "."
    assert found(f"{sentence} {sentence} Short.") == []
    (problem,) = found(f"{sentence} {sentence}")
    assert problem == "docs/page.md: sentences have 25.0 words on average, at most 20"


def test_a_code_span_and_a_link_are_what_a_reader_sees():
    code = '`engine.info()["adapters"] and more. Words` ' * 29
    assert found(f"It has {code.strip()}." + " Short." * 3)[0].startswith("docs/page.md: a sentence of 31 words")
    link = '[a guide](long/path/to/a/page.md#with-many-words "a title of many words") ' * 14
    assert found(f"See {link.strip()}. Short.") == []


@pytest.mark.parametrize(
    "text",
    [
        "The cache lies in memory.",
        "It is told to all.",
        "a row of its own",
        "Nobody waits.",
        "one twin\nof it",
        "- It stands here.",
        "| the law | x |",
        "## Beside it",
        "[behind](a.md) it",
        "several cards",
        "It guesses tokens.",
    ],
)
def test_words_that_prose_may_not_use(text):
    (problem,) = found(text)
    assert problem.startswith("docs/page.md: “") and "better:" in problem


@pytest.mark.parametrize(
    "text",
    [
        "Run it behind a proxy.",
        "`told()` and `x.law`",
        "[it](told.md#behind)",
        "It earlier belies kindness.",
        "T stands for time.",
    ],
)
def test_words_that_only_look_like_them(text):
    assert found(text) == []


def test_the_house_fails_on_a_planted_sentence_and_word(tmp_path: Path):
    for page in house_prose.GUIDES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text("# Page\n\nAll is well.\n")
    assert list(house.prose(tmp_path)) == []
    (tmp_path / house_prose.GUIDES[0]).write_text(f"{LONG} Short. Short.\n\nThe cache lies in memory.\n")
    (tmp_path / house_prose.GUIDES[-1]).unlink()
    long, word, gone = house.prose(tmp_path)
    assert LONG in long and "“lies”" in word and "not there" in gone

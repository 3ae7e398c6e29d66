"""docs/grammars.md says what is true: its blocks run, one after the other, and do what the page claims."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from sgl import grammars

PAGE = (Path(__file__).parents[3] / "docs/grammars.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.fixture(scope="module")
def page():
    """The names that the blocks leave behind, and what they print."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in BLOCKS:
            exec(compile(block, "docs/grammars.md", "exec"), names)
    yield names, printed.getvalue()
    grammars.set_cache_dir(None)


def test_the_answer_is_an_instance(page):
    names, _ = page
    answer = json.loads(names["answer"])
    assert answer.keys() == {"city", "guests"} and len(answer["city"]) <= 20 and 1 <= answer["guests"] <= 9


def test_a_batch_is_sampled_under_one_processor(page):
    names, _ = page
    tokenizer, model, torch = names["tokenizer"], names["model"], names["torch"]
    torch.manual_seed(1)
    processor = names["GrammarProcessor"](grammars.compile_regex("[a-z]{2,6}( [0-9]{1,3})?", names["vocabulary"]))
    prompt = tokenizer("x", return_tensors="pt")
    output = model.generate(
        **prompt,
        logits_processor=[processor],
        do_sample=True,
        temperature=1.5,
        num_return_sequences=6,
        max_new_tokens=16,
    )
    texts = tokenizer.batch_decode(output[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert len(set(texts)) > 1
    assert all(re.fullmatch("[a-z]{2,6}( [0-9]{1,3})?", text) for text in texts), texts


def test_errors_print_what_the_page_says(page):
    (comment,) = re.findall(r"print\(error\)  # (.*)", PAGE)
    assert comment in page[1]


def test_a_second_opinion_is_what_the_page_shows(page):
    names, printed = page
    (table,) = re.findall(r"print\(verification\)\n```\n\n```text\n(.*?)```", PAGE, re.S)
    assert table in printed
    assert [row.text for row in names["verification"].differences] == ["]", "a.5"]
    assert names["verification"].unjudged == ()


def test_the_engines_of_a_second_opinion_are_named():
    from sgl.grammars.second_opinion.engine_table import ENGINES

    assert re.findall(r"^\| `([\w-]+)`.* \|.*(?:EBNF|regular)", PAGE, re.M) == list(ENGINES)


def test_the_formats_are_those_of_the_code():
    from sgl.grammars.structural.structural_fields import FIELDS

    (named,) = re.findall(r"Its formats are (.*?) is our own", PAGE, re.S)
    assert set(re.findall(r"`(\w+)`", named)) == set(FIELDS)


def test_numbers_and_names_are_those_of_the_code():
    from sgl.grammars.network import grammar_disk_cache

    assert f"{grammar_disk_cache.MOST_BYTES >> 20} MB" in PAGE
    assert f"{grammar_disk_cache.WORTHWHILE * 1000:.0f} ms" in PAGE
    for name in re.findall(r"`(compile_\w+|reasoning|set_cache_dir|core_name|\w+Error)", PAGE):
        assert hasattr(grammars, name) or name == "ValueError"
    for name in re.findall(r"grammars\.(\w+)[(.]", PAGE):
        assert hasattr(grammars, name) or name == "md"

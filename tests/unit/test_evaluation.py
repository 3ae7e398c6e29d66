"""sgl.evaluate, compare and tune on scripted answers: what is run, what is shown, and what a journal keeps."""

from __future__ import annotations

import csv
import html.parser
import json
import re
from functools import partial
from typing import Literal

import numpy as np
import pytest

import sgl
from sgl.evaluation.compare import bootstrap
from sgl.lang.errors import ArgumentsError, BadValueError
from sgl.tasks.task import Task

LABELS = ["good", "bad"]


@sgl.function
def mood(s, text, hint=""):
    s += hint + "Text: " + text + "\nMood: " + sgl.gen("mood", Literal["good", "bad"])
    return s.get("mood")


@sgl.function
def choose(s, text):
    s += "Text: " + text + "\nMood: " + sgl.select("mood", LABELS)


def answers(prompt, request):
    """good for texts with an even number at their end"""
    return LABELS[int(re.findall(r"\d+(?=\nMood)", prompt)[-1]) % 2]


def script():
    return sgl.Scripted({"mood": answers})


ROWS = [{"text": f"number {i}"} for i in range(8)]
GOLD = [LABELS[i % 2] if i != 3 else "good" for i in range(8)]


def test_a_program_is_scored_and_shown():
    found = sgl.evaluate(mood, ROWS, GOLD, backend=script())
    assert (found.right, found.score, found.errors) == (7, 7 / 8, []) and repr(found).startswith(
        "<evaluation of mood: 7 of 8"
    )
    assert found.rows[3].value == "bad" and not found.rows[3].right
    assert found.usage.operations == 8 and found.journal is None
    text = str(found)
    assert "mood: 7 of 8 rows right (87.5%), score 0.875" in text and "8 operations" in text
    assert found.confusion().counts == {("good", "good"): 4, ("bad", "bad"): 3, ("good", "bad"): 1}
    assert re.search(r"good +4 +1 +0\.80", text) and re.search(r"precision +1\.00 +0\.75", text)


def test_a_variable_is_read_with_the_probability_of_its_choice():
    scripted = sgl.Scripted({"mood": [{"good": -0.1, "bad": -2.5}] * 4})
    found = sgl.evaluate(choose, ROWS[:4], ["good", "good", "bad", "good"], value="mood", backend=scripted)
    assert found.right == 3 and found.calibration.count == 4
    assert found.rows[0].fields[0].confidence == pytest.approx(1 / (1 + np.exp(-2.4)), abs=1e-3)
    assert "4 confidences: ECE" in str(found) and "<circle" in found.html
    with pytest.raises(BadValueError, match="returned None for every row; return the value from its body, or name"):
        sgl.evaluate(choose, ROWS[:1], ["good"], backend=sgl.Scripted({"mood": "good"}))


def test_a_row_that_fails_counts_as_wrong_and_is_shown():
    @sgl.function
    def strict(s, text):
        s += text + sgl.gen("n", regex="[0-9]+")
        if s["n"] == "2":
            raise ValueError("two <b>日本</b>")
        return int(s["n"])

    scripted = sgl.Scripted({"n": ["1", "2", RuntimeError("no connection"), "4"]})
    found = sgl.evaluate(strict, [(str(i),) for i in range(4)], [1, 2, 3, 4], backend=scripted, num_threads=1)
    assert [row.right for row in found.rows] == [True, False, False, True] and len(found.errors) == 2
    assert "row 1: ValueError: two <b>日本</b>" in str(found) and "no connection" in str(found)
    assert "two &lt;b&gt;日本" in found.html and "two <b>" not in found.html


class Lengths(Task):
    """A task as those of sgl.tasks."""

    def __call__(self, digits, text, **options):
        return self._run({"digits": digits, "text": text}, options)

    def batch(self, digits, texts, return_exceptions=False, **options):
        return self._run_batch([{"digits": digits, "text": text} for text in texts], options, return_exceptions)


@sgl.function
def _length(s, digits, text):
    s += text + ": " + sgl.gen("n", regex=f"[0-9]{{{digits}}}")
    return int(s["n"])


class Called:
    """What a task with confidences returns."""

    def __init__(self, text):
        self.value, self.confidence = {"n": len(text)}, {"n": 0.75}


def test_a_task_runs_with_its_first_arguments():
    task = Lengths("lengths", _length)
    scripted = sgl.Scripted({"n": ["3", "5", "x"]})
    found = sgl.evaluate(partial(task, 1), ["abc", "abcd", "y"], [3, 4, 1], backend=scripted, num_threads=1)
    assert [row.right for row in found.rows] == [True, False, False] and len(found.errors) == 1
    assert found.name == "lengths"


class Sure:
    def __init__(self, whole):
        self.whole = whole


class Extracted:
    """What `sgl.extract(..., details=True)` returns, with confidences of fields and of items of lists."""

    def __init__(self, value, confidence):
        self.value, self.confidence, self.usage = value, confidence, sgl.Usage(generated_tokens=7, operations=1)


class Labelled:
    """What `sgl.classify` returns."""

    def __init__(self, *labels):
        self.label, self.labels, self.probs, self.confidence = labels[0], list(labels), {"a": 0.7, "b": 0.2}, 0.6


def test_confidences_of_fields_and_labels_are_read():
    value = {"city": "Rome", "lines": [{"price": 1}, {"price": 2}], "tags": ["x", "y"]}
    sure = {"city": Sure(0.9), "lines[0].price": Sure(0.8), "lines[1].price": 0.5, "tags[0]": 0.4, "tags[1]": 0.5}
    gold = {**value, "lines": [{"price": 2}, {"price": 3}]}
    found = sgl.evaluate(lambda row: Extracted(value, sure), ["a"], [gold])
    of = {(field.path, str(field.gold)): field.confidence for field in found.rows[0].fields}
    assert of["city", "Rome"] == 0.9 and of["lines[].price", "2"] == 0.5 and of["lines[].price", "3"] == 0.8
    lists = {field.path: field.confidence for field in found.rows[0].fields if isinstance(field.gold, list)}
    assert lists == {"lines": pytest.approx(0.4), "tags": pytest.approx(0.2)}
    assert sgl.evaluate(lambda row: Extracted(value, None), ["a"], [gold]).calibration is None
    one = sgl.evaluate(lambda row: Labelled("a"), ["x"], ["a"])
    several = sgl.evaluate(lambda row: Labelled("a", "b"), ["x"], [["b", "a"]])
    assert (one.right, several.right) == (1, 1) and several.rows[0].fields[0].confidence == 0.6


def test_any_function_is_called_with_each_row(tmp_path):
    calls = []

    def length(text):
        calls.append(text)
        return Called(text)

    path = tmp_path / "run.jsonl"
    found = [sgl.evaluate(length, rows, [{"n": 1}, {"n": 2}], journal=path) for rows in (["a", "bb"], ["a", "ccc"])]
    assert sorted(calls) == ["a", "bb", "ccc"] and [one.right for one in found] == [2, 1]
    assert found[1].journal == (1, 1) and found[1].fields["n"].calibration.count == 2
    with pytest.raises(BadValueError, match="to which evaluate gives only the rows"):
        sgl.evaluate(length, ["a"], [{"n": 1}], seed=3)
    with pytest.raises(BadValueError, match="names a variable of a program"):
        sgl.evaluate(length, ["a"], [{"n": 1}], value="n")
    assert sgl.evaluate(lambda a, b=1: a + b, [(1, 2), {"a": 1}], [3, 2]).right == 2


def test_a_journal_leaves_only_what_changed_to_be_computed(tmp_path):
    path = tmp_path / "run.jsonl"
    first = sgl.evaluate(mood, ROWS, GOLD, backend=script(), journal=path)
    moved = [{"text": "number 9"}, *ROWS[1:]]
    again = sgl.evaluate(mood, moved, GOLD, backend=script(), journal=path)
    other = sgl.evaluate(mood.bind(hint="Read. "), ROWS, GOLD, backend=script(), journal=path)
    assert [tuple(one.journal) for one in (first, again, other)] == [(0, 8), (7, 1), (0, 8)]
    assert "7 nodes from the journal, 1 computed" in str(again)


def test_rows_and_scores_that_do_not_fit_are_refused():
    with pytest.raises(BadValueError, match="8 rows and 1 gold values"):
        sgl.evaluate(mood, ROWS, ["good"], backend=script())
    with pytest.raises(BadValueError, match="scores has 'moood', but no value has this field; known: "):
        sgl.evaluate(mood, ROWS, GOLD, backend=script(), scores={"moood": "exact"})
    assert sgl.evaluate(mood, ROWS, GOLD, backend=script(), scores={"": lambda gold, given: 0.5}).score == 0.5


class Checked(html.parser.HTMLParser):
    """Counts open elements, and collects what a page would load."""

    def __init__(self):
        super().__init__()
        self.open, self.loads = [], []

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "rect", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing_and_the_csv_has_every_field(tmp_path):
    found = sgl.evaluate(mood, ROWS, GOLD, backend=script())
    page = found.page(tmp_path / "page.html").read_text()
    checked = Checked()
    checked.feed(page)
    assert checked.open == [] and checked.loads == [] and "<script" not in page and " style=" not in page
    assert page.count("<svg") == 2 and page.count("<details open>") == 1 and "Labels of the value" in page
    assert "<iframe" in found._repr_html_()
    lines = list(csv.DictReader(found.csv(tmp_path / "rows.csv").open(encoding="utf-8")))
    assert len(lines) == 8 and lines[3] == {
        **{"row": "3", "field": "", "gold": "good", "given": "bad", "exact": "0", "normalised": "0"},
        **{"score": "0.0", "confidence": "", "error": ""},
    }


def test_two_programs_are_compared_row_by_row():
    wrong = sgl.Scripted({"mood": lambda prompt, request: "good"})
    a = sgl.evaluate(mood, ROWS, GOLD, backend=wrong, name="always good")
    found = sgl.compare(a, sgl.evaluate(mood, ROWS, GOLD, backend=script()))
    assert (found.won, found.lost) == ([1, 5, 7], [3])
    assert found.difference.mean == pytest.approx(2 / 8) and found.difference == found.fields[""]
    assert found.difference == sgl.compare(found.a, found.b).difference, "the seed is fixed"
    assert "b is better in 3 rows, worse in 1, equal in 4" in str(found) and "a: always good" in str(found)
    both = sgl.compare(mood, mood.bind(hint="x"), ROWS, GOLD, backend=script())
    assert both.difference.mean == 0 and not both.difference.certain
    with pytest.raises(BadValueError, match="needs the rows and the gold values"):
        sgl.compare(mood, mood)
    with pytest.raises(BadValueError, match="different gold values"):
        sgl.compare(a, sgl.evaluate(mood, ROWS, GOLD[::-1], backend=script()))


def test_the_bootstrap_is_that_of_plain_loops():
    differences = np.array([0.2, -0.1, 0.0, 0.5, 0.3, -0.2, 0.1])
    generator = np.random.default_rng(3)
    means = sorted(np.mean([differences[i] for i in generator.integers(0, 7, 7)]) for _ in range(10_000))
    found = bootstrap(differences, seed=5)
    assert found.mean == pytest.approx(differences.mean())
    assert found.low == pytest.approx(means[250], abs=0.01) and found.high == pytest.approx(means[9750], abs=0.01)
    assert bootstrap(np.ones(5)) == bootstrap(np.ones(5), seed=1), "without variance there is one mean"


@sgl.function
def learn(s, text, examples=(), wording="Sort."):
    s += wording + "\n" + "".join(f"{one} is {value}\n" for one, value in examples)
    s += f"{text} is " + sgl.gen("kind", regex="even|odd")
    return s["kind"]


def learned(prompt, request):
    """Right if an example of the kind is there, or the wording is good."""
    *shots, last = prompt.strip().splitlines()[1:]
    kind = "even" if int(last.split()[0]) % 2 == 0 else "odd"
    return kind if any(shot.endswith(kind) for shot in shots) or prompt.startswith("Sort well") else "even"


def test_tuning_finds_examples_and_tests_them_on_rows_that_no_try_has_seen(tmp_path):
    rows, gold = [(str(i),) for i in range(60)], [["even", "odd"][i % 2] for i in range(60)]
    scripted, path = sgl.Scripted({"kind": learned}), tmp_path / "tune.jsonl"
    found = sgl.tune(learn, rows, gold, backend=scripted, tries=12, most=2, journal=path)
    assert found.tries[0][0] == {"examples": []} and found.tries[0][1] < 1 and len(found.tries) <= 12
    assert (
        any(value == "odd" for _, value in found.arguments["examples"]) and found.test.b.score == 1 > found.test.a.score
    )
    used = {text for arguments, _ in found.tries for text, _ in arguments["examples"]}
    tested = {row.row[0] for row in found.test.b.rows}
    scored = {re.findall(r"(\d+) is $", call.prompt)[0] for call in scripted.calls} - tested
    assert not used & tested and not used & scored and len(tested) + len(scored) < 60
    assert [
        arguments for i, (arguments, _) in enumerate(found.tries) if arguments in [a for a, _ in found.tries[:i]]
    ] == []
    assert found.program.bind_arguments == found.arguments and "On the test rows:" in str(found)
    served = sgl.Scripted({"kind": learned})
    again = sgl.tune(learn, rows, gold, backend=served, tries=12, most=2, journal=path)
    assert again.tries == found.tries and served.calls == []


def test_tuning_wordings_alone():
    rows, gold = [{"text": str(i)} for i in range(40)], [["even", "odd"][i % 2] for i in range(40)]
    wordings = {"wording": ["Sort.", "Sort badly.", "Sort well."]}
    scripted = sgl.Scripted({"kind": learned})
    found = sgl.tune(learn, rows, gold, backend=scripted, examples=None, wordings=wordings, tries=5)
    assert found.arguments == {"wording": "Sort well."} and len(found.tries) == 3
    with pytest.raises(RuntimeError, match="no model"):
        sgl.tune(learn, rows, gold, backend=sgl.Scripted({"kind": [RuntimeError("no model")] * 40}))
    with pytest.raises(BadValueError, match="nothing to try; give examples="):
        sgl.tune(learn, rows, gold, backend=scripted, examples=None)
    with pytest.raises(BadValueError, match="2 rows are too few"):
        sgl.tune(learn, rows[:2], gold[:2], backend=scripted)


def test_the_nearest_examples_are_chosen_by_vectors():
    def embed(texts):
        return [[text.count("a"), text.count("b"), 5.0] for text in texts]

    near = sgl.nearest([("aaa", 1), ("bbb", 2), ("aab", 3), ("abb", 4)], 2, embed=embed)
    assert near("aaaa") == [("aab", 3), ("aaa", 1)] and near("bbb") == [("aab", 3), ("abb", 4)]
    assert len(sgl.nearest([("a", 1)], 3, embed=embed)("b")) == 1
    with pytest.raises(BadValueError, match="Scripted makes no embeddings; give backend="):
        sgl.nearest([("a", 1)], 1, backend=sgl.Scripted({}))
    with pytest.raises(BadValueError, match="0 examples and k=1"):
        sgl.nearest([], 1, embed=embed)


def test_tasks_take_the_nearest_examples():
    embedded = []

    def embed(texts):
        embedded.append(len(texts))
        return [[text.count("a"), text.count("b"), 5.0] for text in texts]

    near = sgl.nearest([("aaa", 1), ("bbb", 2), ("aab", 3)], 1, embed=embed)
    scripted = sgl.Scripted({"value": ["1", "2"]})
    assert sgl.extract.batch(int, ["aaaa", "bb"], examples=near, backend=scripted, num_threads=1) == [1, 2]
    assert ["aaa" in prompt for prompt in scripted.prompts("value")] == [True, False]
    labels = sgl.Scripted({"label": lambda prompt, request: "x" if "bbb" in prompt else "y"})
    kinds = sgl.nearest([("aaa", "y"), ("bbb", "x")], 1, embed=embed)
    found = [sgl.classify(text, ["x", "y"], examples=kinds, backend=labels).label for text in ("ab b", "aa", "b")]
    assert found == ["x", "y", "x"] and embedded == [3, 1, 1, 2, 1, 1, 1], "the examples are embedded once"


def test_names_are_public():
    assert {"evaluate", "compare", "tune", "nearest", "Evaluation"} <= set(sgl.__all__)
    assert json.dumps(sgl.evaluate(mood, ROWS, GOLD, backend=script()).rows[0].row)


@pytest.mark.parametrize(
    ("program", "rows", "gold", "message"),
    [
        (None, ["a"], [1], "the program is None; give an @sgl.function"),
        ("mood", ["a"], [1], "the program is 'mood'"),
        (len, "ab", [1, 2], "rows is 'ab'; give a list"),
        (len, None, [1], "rows is None; give a list"),
        (len, ["a"], None, "gold is None; give a list"),
        (sgl.extract, ["a"], [1], r"cannot run with the rows alone: .*; give its other arguments, as in functools"),
    ],
)
def test_what_no_row_could_run_with_is_refused(program, rows, gold, message):
    with pytest.raises(BadValueError, match=message):
        sgl.evaluate(program, rows, gold)


@pytest.mark.parametrize("returned", [2, -0.5, float("nan"), "x", None])
def test_a_score_is_a_number_from_0_to_1(returned):
    with pytest.raises(BadValueError, match=r"scores\[''\] returned .*; return a number from 0 to 1"):
        sgl.evaluate(len, ["a"], [1], scores={"": lambda gold, given: returned})
    with pytest.raises(BadValueError, match="scores is 5; give a dict"):
        sgl.evaluate(len, ["a"], [1], scores=5)


def test_evaluations_of_other_texts_are_not_compared():
    one, other = (sgl.evaluate(len, rows, [1, 1]) for rows in (["a", "b"], ["b", "a"]))
    with pytest.raises(BadValueError, match="row 0 is 'a' in one evaluation and 'b' in the other"):
        sgl.compare(one, other)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gold": GOLD[:-1]}, "there are 8 rows and 7 gold values"),
        ({"tries": "3"}, "tries is '3'; give a whole number"),
        ({"examples": 3}, "examples is 3; give the name of the program's parameter"),
        ({"wordings": {"hint": "one text"}}, r"wordings\['hint'\] is 'one text'; give a list"),
        ({"wordings": {"hint": []}}, r"wordings\['hint'\] is \[\]; give a list"),
    ],
)
def test_tune_refuses_what_is_no_list_number_or_name(given, message):
    with pytest.raises(BadValueError, match=message):
        sgl.tune(mood, **{"rows": ROWS, "gold": GOLD, **given}, backend=script())


def test_a_confusion_of_no_field_names_the_fields():
    with pytest.raises(BadValueError, match="no value has the field 'x'; known: mood"):
        sgl.evaluate(lambda row: {"mood": row}, LABELS, [{"mood": one} for one in LABELS]).confusion("x")


def test_half_a_surrogate_pair_can_be_written(tmp_path):
    found = sgl.evaluate(str, ["\ud800"], ["\ud800"])
    assert found.right == 1 and found.page(tmp_path / "page.html").is_file()
    assert "\\ud800" in found.csv(tmp_path / "rows.csv").read_text(encoding="utf-8")


def test_a_function_without_source_needs_it_only_for_a_journal(tmp_path):
    assert sgl.evaluate(len, ["a", "bc"], [1, 2]).right == 2
    with pytest.raises(ArgumentsError, match="the source of len cannot be read"):
        sgl.evaluate(len, ["a"], [1], journal=tmp_path / "journal.jsonl")

"""sgl.classify and sgl.calibrate on scripted scores."""

import asyncio
import enum
import json
import math
import pickle
import re
import warnings
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import sgl
from sgl.lang.errors import BadValueError, BatchError, ProgramError, UnknownOptionError, UnsupportedByBackendError
from sgl.tasks.calibration_fit import fit, held_out, log_softmax

ROOT = Path(__file__).parents[2]


class Kind(enum.Enum):
    BILLING = "billing"
    "invoices and payments"
    TECHNICAL = "technical"


def scores(**probs):
    return sgl.Scripted({"label": {text: math.log(prob) for text, prob in probs.items()}})


def fits(**probs):
    """Yes to a label's question with that probability."""

    def answer(prompt, request):
        label = prompt.rpartition("Does the label ")[2].partition(" fit the text?")[0]
        return {"yes": math.log(probs[label]), "no": math.log(1 - probs[label])}

    return sgl.Scripted({"fits": answer})


def test_labels_of_a_list_are_texts():
    backend = scores(good=0.25, bad=0.75)
    made = sgl.classify("It was cold.", ["good", "bad"], backend=backend)
    assert (made.label, made.labels, list(made.probs)) == ("bad", ["bad"], ["bad", "good"])
    assert made.probs == pytest.approx({"bad": 0.75, "good": 0.25}) and made.confidence == pytest.approx(0.75)
    assert "Choose the label that fits the text.\n- good\n- bad" in backend.calls[0].prompt


def test_labels_of_types_are_their_values():
    assert sgl.classify("x", Kind, backend=scores(billing=0.9, technical=0.1)).label is Kind.BILLING
    assert sgl.classify("x", Literal[1, 2], backend=scores(**{"1": 0.1, "2": 0.9})).probs.keys() == {1, 2}
    assert sgl.classify("x", bool, backend=scores(**{"True": 0.1, "False": 0.9})).label is False


def test_definitions_instructions_and_examples_are_in_the_prompt():
    backend = scores(billing=0.9, technical=0.1)
    examples = [("It crashes.", Kind.TECHNICAL), ("My bill?", "billing")]
    sgl.classify("x", Kind, instructions="Sort the ticket.", examples=examples, backend=backend)
    prompt = backend.calls[0].prompt
    assert "Sort the ticket.\n- billing: invoices and payments\n- technical" in prompt
    parts = ["It crashes.", "technical", "My bill?", "billing", "x"]
    at = [prompt.index(part, prompt.index("It crashes.")) for part in parts]
    assert at == sorted(at)


def test_none_of_these_is_one_more_label():
    backend = scores(**{"good": 0.2, "bad": 0.1, "none of these": 0.7})
    made = sgl.classify("x", ["good", "bad"], none=True, backend=backend)
    assert (made.label, made.labels, made.probs[None]) == (None, [], pytest.approx(0.7))
    other = sgl.classify("x", ["good", "bad"], none="other", backend=scores(good=0.5, bad=0.3, other=0.2))
    assert other.label == "good" and set(other.probs) == {"good", "bad", None}


def test_on_a_tie_the_first_label_wins():
    assert sgl.classify("x", ["b", "a"], backend=scores(b=0.5, a=0.5)).label == "b"


def test_several_labels_are_independent_questions():
    backend = fits(travel=0.9, food=0.6, sports=0.2)
    made = sgl.classify("Fish in Rome.", {"travel": "trips", "food": None, "sports": None}, multi=True, backend=backend)
    assert made.labels == ["travel", "food"] and made.label == "travel"
    assert made.probs == pytest.approx({"travel": 0.9, "food": 0.6, "sports": 0.2})
    assert made.confidence == pytest.approx(0.9 * 0.6 * 0.8)
    before = {call.prompt.partition("Does the label")[0] for call in backend.calls}
    assert len(before) == 1 and "Fish in Rome." in before.pop()
    assert "Does the label travel fit the text? It means: trips\n- yes\n- no" in backend.calls[0].prompt
    assert sgl.classify("x", ["a", "b"], multi=True, threshold=0.95, backend=fits(a=0.9, b=0.1)).labels == []
    assert sgl.classify("x", ["a"], multi=True, backend=fits(a=0.9)).labels == ["a"]


def test_examples_of_several_labels_precede_the_text():
    backend = fits(a=0.9, b=0.1)
    sgl.classify("x", ["a", "b"], multi=True, examples=[("one", ["a", "b"]), ("two", [])], backend=backend)
    assert "Text: one\nLabels that fit: a, b\n\nText: two\nLabels that fit: none" in backend.calls[0].prompt


def test_all_forms_give_the_same():
    def backend():
        return scores(good=0.25, bad=0.75)

    labels = ["good", "bad"]
    once = sgl.classify("x", labels, backend=backend())
    assert asyncio.run(sgl.classify.arun("x", labels, backend=backend())) == once
    assert sgl.classify.batch(["x", "x"], labels, backend=backend(), num_threads=2) == [once, once]
    assert asyncio.run(sgl.classify.abatch(["x"], labels, backend=backend())) == [once]
    assert pickle.loads(pickle.dumps(sgl.classify)) is sgl.classify


def test_a_text_that_fails_leaves_the_others():
    def answer(prompt, request):
        return RuntimeError("broken") if "bad text" in prompt else {"a": -1.0, "b": -2.0}

    backend = sgl.Scripted({"label": answer})
    with pytest.raises(BatchError, match="item 1 of 2"):
        sgl.classify.batch(["x", "bad text"], ["a", "b"], backend=backend)
    first, second = sgl.classify.batch(["x", "bad text"], ["a", "b"], backend=backend, return_exceptions=True)
    assert first.label == "a" and isinstance(second, ProgramError)


def test_a_journal_has_the_scores(tmp_path):
    path = tmp_path / "run.jsonl"
    made = sgl.classify.batch(["x", "y"], ["a", "b"], backend=scores(a=0.9, b=0.1), journal=path)
    assert sgl.classify.batch(["x", "y"], ["a", "b"], backend=sgl.Scripted({}), journal=path) == made


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"labels": "good"}, "classify: choices is 'good'"),
        ({"labels": ["good"]}, "give at least 2 labels"),
        ({"labels": ["a", "a", "b"]}, "the label 'a' is there twice"),
        ({"labels": ["a", ""]}, "empty text"),
        ({"labels": ["a", "b"], "none": "a"}, "is one of the labels already"),
        ({"labels": ["a", "b"], "none": 3}, "none is 3"),
        ({"labels": ["a", "b"], "threshold": 0.5}, "belongs to multi=True"),
        ({"labels": ["a", "b"], "multi": True, "threshold": 2}, "threshold is 2"),
        ({"labels": ["a", "b"], "multi": True, "none": True}, "none= with multi=True"),
        ({"labels": ["a", "b"], "examples": [("x", "c")]}, "example 0: 'c' is none of the labels"),
        ({"labels": ["a", "b"], "examples": ["x"]}, r"give \(text, label\)"),
        ({"labels": ["a", "b"], "multi": True, "examples": [("x", "a")]}, "a list of the labels that fit"),
        ({"labels": ["a", "b"], "text": None}, "text is None"),
    ],
)
def test_what_is_wrong_is_named(given, message):
    with pytest.raises(BadValueError, match=message):
        sgl.classify(**{"text": "x", "backend": sgl.Scripted({}), **given})


def test_options_that_do_not_exist_are_refused():
    with pytest.raises(UnknownOptionError, match="multy"):
        sgl.classify("x", ["a", "b"], multy=True, backend=sgl.Scripted({}))
    with pytest.raises(BadValueError, match="give a list of texts"):
        sgl.classify.batch("x", ["a", "b"], backend=sgl.Scripted({}))


def test_a_chat_api_without_scores_is_refused_by_name():
    backend = sgl.OpenAI("gpt-x", api_key="none", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ProgramError, match="gives no scores for <AnswerLikelihood>") as caught:
        sgl.classify("x", ["a", "b"], backend=backend)
    assert isinstance(caught.value.__cause__, UnsupportedByBackendError)
    backend.shutdown()


# --- the method ------------------------------------------------------------------------------------------


def test_the_end_of_the_turn_counts_where_a_choice_begins_another():
    method = sgl.answer_likelihood
    assert method.scores_end(["art", "zoo", "artist"]) and method.scores_end(["b a", "b", "a"])
    assert not method.scores_end(["art", "cart", "tar"]) and not method.scores_end(["a", "a"])
    backend = sgl.Scripted({"label": {"art": -1.0, "artist": -2.0}}, chat_template="chatml")
    sgl.classify("x", ["art", "artist"], backend=backend)
    assert backend.calls[0].request.end == "<|im_end|>"
    assert backend.calls[0].request.scored == ["art<|im_end|>", "artist<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "end"),
    [("llama-3-instruct", "<|eot_id|>"), ("gemma-it", "<end_of_turn>"), ("glm-4v", "<|user|>"), ("default", "\n")],
)
def test_the_end_is_what_the_template_writes(template, end):
    backend = sgl.Scripted({"label": {"art": -1.0, "artist": -2.0}}, chat_template=template)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the default template is a guess
        sgl.classify("x", ["art", "artist"], backend=backend)
    assert backend.calls[0].request.end == end


def test_outside_of_a_turn_the_end_is_unknown():
    @sgl.function
    def bare(s):
        s += "Label: " + sgl.select("label", ["art", "artist"], choices_method=sgl.answer_likelihood)

    with pytest.raises(ProgramError, match="one of the choices is the beginning of another"):
        bare.run(backend=scores(art=0.5, artist=0.5))["label"]


# --- the page ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["classify_program.py", "decide_program.py"])
def test_the_page_quotes_the_programs(file):
    page = (ROOT / "docs/classify.md").read_text(encoding="utf-8")
    source = (ROOT / "sgl/tasks" / file).read_text(encoding="utf-8")
    programs = re.findall(r"^@sgl\.function\n.*?(?=\n\n\n|\Z)", source, re.M | re.S)
    assert programs and all(program.strip() in page for program in programs)


# --- calibration -----------------------------------------------------------------------------------------


def biased(seed, rows, scale, biases):
    """Log-probabilities of a model that is too sure by 1 / scale and dislikes labels by their biases; what is right."""
    rng = np.random.default_rng(seed)
    true = log_softmax(rng.normal(0, 2, (rows, len(biases))))
    right = np.array([rng.choice(len(biases), p=row) for row in np.exp(true)])
    return log_softmax((true - np.array(biases)) / scale), right


def test_the_fit_finds_what_was_put_in():
    biases = [0.0, 2.0, -1.0]
    logs, right = biased(1, 20_000, 0.5, biases)
    scale, found = fit(logs, right)
    assert scale == pytest.approx(0.5, rel=0.05)
    assert found - found[0] == pytest.approx(biases, abs=0.1)
    assert fit(logs, right, biases=False)[1].tolist() == [0, 0, 0]


def test_the_fit_is_the_best_of_its_neighbours():
    logs, right = biased(2, 40, 0.4, [0.0, 3.0])
    scale, biases = fit(logs, right)

    def posterior(scale, biases):
        likely = log_softmax(scale * logs + biases)[np.arange(len(right)), right].sum()
        return likely - math.log(scale) ** 2 / 2 - (biases**2).sum() / 8

    best = posterior(scale, biases)
    for change in (1e-3, -1e-3):
        assert posterior(scale + change, biases) < best
        assert posterior(scale, biases + [change, 0]) < best


def test_held_out_rows_are_not_in_their_fit():
    logs, right = biased(3, 12, 1.0, [0.0, 0.0])
    whole = held_out(logs, right, True, 12)
    scale, biases = fit(np.delete(logs, 5, 0), np.delete(right, 5))
    assert whole[5] == pytest.approx(log_softmax(scale * logs[5:6] + biases)[0])


ROWS = [(f"{'good' if index % 3 else 'bad'} text {index}", ("good", "bad")[index % 3 == 0]) for index in range(15)]


def prefers_bad():
    """Never sure of "good": 0.45 where it is right, 0.01 where it is not."""

    def answer(prompt, request):
        good = 0.45 if "good text" in prompt else 0.01
        return {"good": math.log(good), "bad": math.log(1 - good)}

    return sgl.Scripted({"label": answer})


def test_a_calibration_corrects_and_says_what_it_is_worth():
    made = sgl.calibrate(ROWS, ["good", "bad"], backend=prefers_bad())
    assert made.before.accuracy == pytest.approx(1 / 3) and made.after.accuracy == 1
    assert made.after.log_loss < made.before.log_loss and (made.rows, made.parts) == (15, 15)
    assert "15 rows, each left out once: accuracy 33.3%" in str(made)
    plain = sgl.classify("good text", ["good", "bad"], backend=prefers_bad())
    better = sgl.classify("good text", ["good", "bad"], calibration=made, backend=prefers_bad())
    assert (plain.label, better.label) == ("bad", "good") and sum(better.probs.values()) == pytest.approx(1)
    assert asyncio.run(sgl.calibrate.arun(ROWS, ["good", "bad"], backend=prefers_bad())) == made
    assert sgl.calibrate(ROWS, ["good", "bad"], biases=False, backend=prefers_bad()).before == made.before


def test_a_calibration_is_read_back(tmp_path):
    made = sgl.calibrate(ROWS, ["good", "bad"], backend=prefers_bad())
    path = tmp_path / "calibration.json"
    made.save(path)
    assert sgl.Calibration.load(path) == made
    content = json.loads(path.read_text())
    for broken in ({**content, "format": 9}, {**content, "biases": [1.0]}, {"labels": []}, []):
        path.write_text(json.dumps(broken))
        with pytest.raises(BadValueError, match="is not a calibration"):
            sgl.Calibration.load(path)


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (
            ROWS[:2],
            ["good", "bad"],
            "2 rows and needs 10, and 3 of each label: add 2 more of 'good', 2 more of 'bad', 8",
        ),
        (ROWS, ["good", "bad", "ugly"], "add 3 more of 'ugly'; with biases=False"),
        ([*ROWS, "x"], ["good", "bad"], "row 15 is 'x'"),
        ([("x", "worse")], ["good", "bad"], "the label of row 0: 'worse' is none of the labels"),
    ],
)
def test_too_few_rows_say_how_many_are_missing(rows, labels, message):
    with pytest.raises(BadValueError, match=message):
        sgl.calibrate(rows, labels, backend=prefers_bad())


def test_a_calibration_holds_for_what_it_was_made_with():
    made = sgl.calibrate(ROWS, ["good", "bad"], backend=prefers_bad())

    def refused(message, labels=("good", "bad"), **options):
        with pytest.raises((BadValueError, ProgramError), match=message):
            sgl.classify("x", list(labels), calibration=made, **{"backend": prefers_bad(), **options})

    refused("not \\['good', 'ugly'\\]", labels=("good", "ugly"))
    refused("other instructions", instructions="Rate it.")
    refused("other instructions", examples=[("x", "good")])
    refused("calibration= with multi=True", multi=True)
    other = prefers_bad()
    other.get_model_name = lambda: "models/other"
    refused("made with the model 'scripted', and this is 'other'", backend=other)


def test_what_is_no_list_and_no_calibration_is_refused_by_name():
    for given in ("intents.json", {}):
        with pytest.raises(BadValueError, match=r"calibration is .*; give what sgl.calibrate"):
            sgl.classify("x", ["a", "b"], calibration=given, backend=sgl.Scripted({}))
    with pytest.raises(BadValueError, match="examples is 5; give a list of pairs"):
        sgl.classify("x", ["a", "b"], examples=5, backend=sgl.Scripted({}))
    with pytest.raises(BadValueError, match="texts is None; give a list"):
        sgl.classify.batch(None, ["a", "b"], backend=sgl.Scripted({}))
    with pytest.raises(BadValueError, match="rows is None; give a list"):
        sgl.calibrate(None, ["a", "b"], backend=sgl.Scripted({}))


def test_nearest_examples_are_pairs_and_k_is_a_number():
    for examples, k, message in (
        (["a"], 1, "example 0 is 'a'; give"),
        (None, 1, "examples is None"),
        ([("a", 1)], "1", "k is '1'; give a whole number"),
    ):
        with pytest.raises(BadValueError, match=message):
            sgl.nearest(examples, k, embed=len)

"""How values are compared: the forms of leaves, lists by their best matching, and figures against plain oracles."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from itertools import combinations, permutations

import numpy as np
import pydantic
import pytest

from sgl.evaluation.best_matching import best_matching
from sgl.evaluation.calibration_figures import area_under_curve, calibration
from sgl.evaluation.field_scores import MISSING, compared
from sgl.evaluation.plain_values import exact_form, json_form, normalised_form, plain
from sgl.evaluation.text_table import cut, text_table, width
from sgl.lang.errors import BadValueError


class Kind(Enum):
    SMALL = "small"


@dataclass
class Line:
    name: str
    price: float


class Invoice(pydantic.BaseModel):
    city: str | None = None
    kind: Kind = Kind.SMALL
    lines: list[Line] = []


def scores(gold, given, own=None, confidence=None):
    return {field.path: field for field in compared(plain(gold), plain(given), own or {}, confidence or {})}


def test_values_of_all_classes_become_dicts():
    attrs, msgspec = pytest.importorskip("attrs"), pytest.importorskip("msgspec")
    value = attrs.make_class("A", ["x"])(msgspec.defstruct("M", [("y", int)])(3))
    assert plain(value) == {"x": {"y": 3}}
    wanted = {"city": "Rome", "kind": "small", "lines": [{"name": "a", "price": 1}]}
    assert plain(Invoice(city="Rome", lines=[Line("a", 1)])) == wanted
    assert plain({3, 1}) == [1, 3] and plain(np.int64(3)) == 3
    assert json_form(plain({"d": date(2026, 3, 1), "n": Decimal("1.5")})) == {"d": "2026-03-01", "n": 1.5}


@pytest.mark.parametrize(
    "texts",
    [
        ["1234.5", "1,234.50", "1.234,5", "1 234,5", "1'234.5", 1234.5, Decimal("1234.50")],
        ["2", 2, 2.0, "2.0", "+2"],
        ["2026-03-01", "1 March 2026", "March 1st, 2026", "Mar. 1, 2026", "01.03.2026", "2026/3/1", date(2026, 3, 1)],
        ["March 3rd", "3 march", "the 3rd of March"],
        ["25/3/2026", "3/25/2026", datetime(2026, 3, 25)],
        ["Rome", " rome ", "ＲＯＭＥ"],
        ["Straße 5", "STRASSE  5"],
    ],
)
def test_the_same_value_written_differently(texts):
    assert len(set(map(normalised_form, texts))) == 1


@pytest.mark.parametrize(
    "pair",
    [
        ("0012", "12"),
        ("3/4/2026", "4/3/2026"),
        ("marble 5", "march 5"),
        (True, 1),
        ("true", True),
        ("", None),
        ("1.234", "1,234"),
        ("$5", "5"),
        ("e5", "5"),
        ("March 3", "March 3 2026"),
        ("2026-02-30", "30 february 2026"),
    ],
)
def test_different_values_stay_different(pair):
    assert normalised_form(pair[0]) != normalised_form(pair[1])


def test_exact_is_the_value_and_not_the_writing():
    assert exact_form(2) == exact_form(2.0) == exact_form(Decimal("2")) != exact_form("2")
    assert exact_form(date(2026, 3, 1)) == exact_form("2026-03-01") and exact_form(True) != exact_form(1)
    assert exact_form(10**400) != exact_form(float("inf")) and exact_form(float("nan")) == exact_form(float("nan"))


def brute_force(table):
    rows, columns = len(table), len(table[0])
    if rows <= columns:
        return max(sum(table[i][j] for i, j in enumerate(found)) for found in permutations(range(columns), rows))
    return brute_force([list(column) for column in zip(*table, strict=True)])


def test_the_matching_is_the_best_of_all():
    generator = random.Random(4)
    for _ in range(300):
        rows, columns = generator.randint(1, 6), generator.randint(1, 6)
        values = [0.0, 0.5, 1.0] if generator.random() < 0.5 else [generator.random() for _ in range(9)]
        table = [[generator.choice(values) for _ in range(columns)] for _ in range(rows)]
        pairs = best_matching(table)
        assert len(pairs) == min(rows, columns) == len({i for i, _ in pairs}) == len({j for _, j in pairs})
        assert sum(table[i][j] for i, j in pairs) == pytest.approx(brute_force(table))
    assert best_matching([]) == best_matching([[]]) == []


def test_fields_are_found_by_path_and_a_missing_one_is_none():
    found = scores({"city": "Rome"}, Invoice(city="rome"))
    assert list(found) == ["city", "kind", "lines"]
    assert found["city"].normalised and not found["city"].exact and found["city"].right
    assert not found["kind"].right, "the gold value says that it is None"
    assert scores({"a": None}, {})["a"].right and scores(None, None)[""].right
    assert scores({"a": {"b": 1}}, {"a": None})["a.b"].right is False


def test_lists_of_objects_are_matched_and_scored_by_f1():
    gold = {"lines": [{"name": "a", "price": 1}, {"name": "b", "price": 2}]}
    given = {"lines": [{"name": "x", "price": 9}, {"name": "B", "price": 2}, {"name": "a", "price": 5}]}
    confidence = {"lines[1].name": 0.9, "lines[2].price": 0.2}
    fields = compared(gold, given, {}, confidence)
    (whole,) = [field for field in fields if field.path == "lines"]
    assert whole.score == pytest.approx(2 * (1 + 0.5) / (2 + 3)) and not whole.nested
    prices = [field for field in fields if field.path == "lines[].price"]
    assert [(f.gold, f.given, f.right, f.confidence) for f in prices] == [
        (1, 5, False, 0.2),
        (2, 2, True, None),
        (MISSING, 9, False, None),
    ]
    assert [f.confidence for f in fields if f.path == "lines[].name"] == [None, 0.9, None]
    assert scores({"lines": []}, {"lines": []})["lines"].right
    assert scores(gold, {})["lines"].score == 0 and scores({"lines": None}, gold)["lines"].score == 0


def test_lists_of_plain_values_are_scored_in_any_order():
    found = scores({"tags": ["a", "b", "b"]}, {"tags": ["B", "c", "a"]})["tags"]
    assert found.score == pytest.approx(2 / 3) and not found.exact
    assert scores({"tags": ["b", "a"]}, {"tags": ["a", "b"]})["tags"].right
    assert not scores(["a", "b"], ["b", "a"])[""].exact


def test_a_row_that_failed_is_wrong_where_none_would_be_right():
    fields = compared({"a": None, "lines": [], "b": {"c": 1}}, MISSING, {}, {})
    assert [(f.path, f.right) for f in fields] == [("a", False), ("lines", False), ("b.c", False)]


def test_own_scores_by_path():
    own = {"city": "exact", "lines": lambda gold, given: 1 - abs(len(gold) - len(given)) / 2, "": "exact"}
    found = scores(
        {"city": "Rome", "lines": [{"name": "a"}]}, {"city": "rome", "lines": []}, {k: own[k] for k in own if k}
    )
    assert found["city"].score == 0 and found["lines"].score == 0.5 and "lines[].name" not in found
    assert not scores("A", "a", {"": "exact"})[""].right
    with pytest.raises(BadValueError, match=r"scores\['a'\] is 'fuzzy'; give 'exact'"):
        scores({"a": 1}, {"a": 1}, {"a": "fuzzy"})


def area_by_pairs(confidences, right):
    pairs = [
        (x, y)
        for x, a in zip(confidences, right, strict=True)
        for y, b in zip(confidences, right, strict=True)
        if a > b
    ]
    return sum((x > y) + (x == y) / 2 for x, y in pairs) / len(pairs) if pairs else None


def test_calibration_is_what_its_definition_says():
    generator = random.Random(7)
    for _ in range(50):
        confidences = [generator.choice([generator.random(), 0.0, 0.5, 1.0]) for _ in range(generator.randint(1, 40))]
        right = [generator.random() < one for one in confidences]
        found = calibration(confidences, right)
        assert found.brier == pytest.approx(
            sum((c - r) ** 2 for c, r in zip(confidences, right, strict=True)) / len(right)
        )
        bins = [
            [(c, r) for c, r in zip(confidences, right, strict=True) if min(int(c * 10), 9) == n] for n in range(10)
        ]
        gaps = [abs(sum(c - r for c, r in one)) for one in bins]
        assert found.ece == pytest.approx(sum(gaps) / len(right)) and sum(one.count for one in found.bins) == len(right)
        wanted = area_by_pairs(confidences, right)
        assert found.auc == (None if wanted is None else pytest.approx(wanted))
        assert area_under_curve(confidences, right) == found.auc
    assert calibration([], []) is None


def test_tables_are_straight_with_wide_characters():
    table = text_table(["name", "n"], [["天気", "1"], ["é́", "22"], ["🙂 a", "3"], ["x" * 80, "\x07\u202e"]])
    lines = table.splitlines()
    assert {width(line) for line in lines} == {width(lines[1])} and "\x07" not in table
    assert cut("天" * 40, 10) == "天天天天…" and all(width(cut("天a" * n, 9)) <= 9 for n in range(12))


def test_equal_sets_are_equal_in_any_order():
    for one, other in combinations(permutations(["b", 2, 1]), 2):
        assert scores(set(one), list(other))[""].right

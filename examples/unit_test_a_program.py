"""How to test a program without a model: `sgl.Scripted` answers from a script, in milliseconds.

    python examples/unit_test_a_program.py        # or: pytest examples/unit_test_a_program.py

It refuses answers that no model could give (a text that breaks the regex, a choice that does not exist), so a test that
passes describes a run that can happen.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

import sgl


@sgl.function
def handle(s: sgl.State, mail: str, most_tries: int = 2) -> dict[str, Any]:
    """The program under test: the kind of a mail and, for a refund, the amount, which it may ask for twice."""
    s += sgl.system("You sort the mail of a shop.")
    s += sgl.user(mail)
    s += sgl.assistant(sgl.select("kind", ["refund", "praise", "other"]))
    if s["kind"] != "refund":
        return {"kind": s["kind"]}
    for _ in range(most_tries):
        s += sgl.user("How much is it about, in euros?")
        s += sgl.assistant(sgl.gen("amount", int, max_tokens=6))
        if 0 < s.get("amount") <= 1000:
            return {"kind": "refund", "amount": s.get("amount")}
        s += sgl.user(f"It cannot be {s['amount']}. Read the mail again.")
    return {"kind": "refund", "amount": None}


def test_a_refund_has_an_amount():
    script = sgl.Scripted({"kind": "refund", "amount": 40})
    state = handle.run("My kettle of 40 euros leaks.", backend=script)
    assert state.ret_value == {"kind": "refund", "amount": 40}
    script.assert_exhausted()


def test_the_amount_of_praise_is_not_asked_for():
    script = sgl.Scripted({"kind": "praise"})  # a gen of "amount" would fail: the script has no answer for it
    assert handle.run("A lovely kettle!", backend=script).ret_value == {"kind": "praise"}


def test_an_amount_that_cannot_be_is_asked_for_again():
    script = sgl.Scripted({"kind": "refund", "amount": [-3, 40]})  # successive answers
    assert handle.run("40 euros, please.", backend=script).ret_value["amount"] == 40
    first, second = script.prompts("amount")
    assert "It cannot be -3." in second and "cannot" not in first


def test_it_gives_up_after_two_tries():
    state = handle.run("Millions!", backend=sgl.Scripted({"kind": "refund", "amount": [9999, 9998]}))
    assert state.ret_value == {"kind": "refund", "amount": None}


@pytest.mark.parametrize("scores", [(-0.1, -2.0, -3.0), (-1.0, -1.1, -1.2)])
def test_the_likeliest_kind_wins(scores):
    kinds = dict(zip(["refund", "praise", "other"], scores, strict=True))
    state = handle.run("Hm.", backend=sgl.Scripted({"kind": kinds, "amount": 5}))
    assert state["kind"] == "refund"


def test_a_backend_error_is_raised_with_its_cause():
    script = sgl.Scripted({"kind": "refund", "amount": ConnectionError("the server is gone")})
    with pytest.raises(sgl.ProgramError, match="the server is gone") as caught:
        handle.run("40 euros, please.", backend=script)
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_the_script_cannot_say_what_no_model_could():
    with pytest.raises(sgl.ProgramError, match="forty"):
        handle.run("Forty euros.", backend=sgl.Scripted({"kind": "refund", "amount": "forty"}))


if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", __file__]))

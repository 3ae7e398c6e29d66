"""Source that is nested more deeply than Python reads: a problem at a place, never a traceback."""

from __future__ import annotations

import pytest

from sgl.lang.check.check_api import SourceText, _check

DEEP = {
    "signs": "x = " + "-" * 100_000 + "1\n",
    "sums": "x = " + "+".join(["1"] * 20_000) + "\n",
    "attributes": "x = " + "a." * 20_000 + "b\n",
    "calls": "x = a" + "()" * 20_000 + "\n",
    "gens": "@sgl.function\ndef f(s):\n    s += " + " + ".join(["sgl.gen('a')"] * 3000) + "\n",
}


@pytest.mark.parametrize("begin", ["", "import sgl\n"])
@pytest.mark.parametrize("kind", DEEP)
def test_deep_source(kind: str, begin: str) -> None:
    found = _check(SourceText("x.py", begin + DEEP[kind]))
    assert all(
        problem.path == "x.py" and problem.rule == "SGL001" and "nested too deeply" in problem.message
        for problem in found
    )
    assert found or not begin

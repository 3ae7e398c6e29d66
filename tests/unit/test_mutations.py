"""The list of mutations fits the product, and its runner finds them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mutations import MUTATIONS, ROOT, Mutation, main, mutated, replaced


def test_there_are_sixty() -> None:
    assert len(MUTATIONS) == len({(each.file, each.old, each.new) for each in MUTATIONS}) == 60


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.breaks)
def test_its_text_occurs_once_and_its_tests_are_there(mutation: Mutation) -> None:
    assert replaced(mutation) != (ROOT / mutation.file).read_text()
    assert all((ROOT / "tests" / name).is_file() for name in mutation.tests.split())


def test_the_product_is_imported_with_the_mutation() -> None:
    mutation = next(each for each in MUTATIONS if each.file.endswith("stop_strings.py"))
    code = "import sgl.runtime.text.stop_strings as found; print(found.__file__)"
    with mutated(mutation) as site:
        command = [sys.executable, "-P", "-c", code]
        found = subprocess.run(command, env={"PYTHONPATH": str(site)}, capture_output=True, text=True).stdout.strip()
        assert Path(found).is_relative_to(site) and Path(found).read_text() == replaced(mutation)
    assert not site.exists()


@pytest.mark.whole
def test_the_runner_finds_one(capsys: pytest.CaptureFixture[str]) -> None:
    number = next(index for index, each in enumerate(MUTATIONS, 1) if each.file.endswith("stop_strings.py"))
    main([str(number)])
    assert capsys.readouterr().out.endswith("1 found\n")

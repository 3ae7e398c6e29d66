"""One call that begins a journal or goes on with it, with counts; what is not there is said clearly."""

from __future__ import annotations

import pytest

import sgl
from sgl.lang.errors import BadValueError, JournalError
from sgl.lang.journal import JournalCounts


@sgl.function
def ask(s, city):
    s += f"The season in {city}: " + sgl.gen("season", max_tokens=4) + sgl.select("price", ["cheap", "dear"])


def run(path, cities):
    script = sgl.Scripted({"season": ["spring"] * len(cities), "price": ["dear"] * len(cities)})
    with sgl.journal(path, script) as backend:
        states = ask.run_batch([{"city": city} for city in cities], backend=backend)
        texts = [state.text() for state in states]
    return texts, backend.counts


def test_a_journal_is_begun_and_then_resumed(tmp_path):
    path = tmp_path / "run.jsonl"
    first, begun = run(path, ["Rome", "Oslo"])
    more, resumed = run(path, ["Rome", "Oslo", "Bern"])
    assert begun == JournalCounts(served=0, computed=4) and resumed == JournalCounts(served=4, computed=2)
    assert more[:2] == first
    assert str(resumed) == "4 nodes from the journal, 2 computed"


def test_counts_are_read_while_it_runs_and_by_the_option(tmp_path):
    path = tmp_path / "run.jsonl"
    run(path, ["Rome"])
    state = ask.run("Rome", backend=sgl.Scripted({}), journal=path)
    assert state["price"] == "dear"
    with sgl.replay(path) as backend:
        assert backend.counts == (0, 0)
        ask.run("Rome", backend=backend).text()
        assert backend.counts == (2, 0) and repr(backend).endswith("2 nodes from the journal, 0 computed>")


def test_the_seed_of_a_new_journal(tmp_path):
    with sgl.journal(tmp_path / "run.jsonl", sgl.Scripted({}), seed=5) as backend:
        assert backend.journal.header["seed"] == 5
    with sgl.journal(tmp_path / "run.jsonl", sgl.Scripted({}), seed=6) as backend:
        assert backend.journal.header["seed"] == 5


@pytest.mark.parametrize("use", [lambda path: sgl.resume(path, sgl.Scripted({})), sgl.replay, sgl.Journal.open])
def test_a_missing_journal_is_said_with_what_to_do(tmp_path, use):
    path = tmp_path / "none.jsonl"
    with pytest.raises(
        JournalError, match=r"there is no journal at .*none.jsonl; sgl.journal\('.*none.jsonl'\) begins one"
    ):
        use(path)
    with pytest.raises(FileNotFoundError):  # what programs caught before
        use(path)


@pytest.mark.parametrize("seed", ["7", 1.5, True])
def test_a_seed_that_is_no_whole_number_begins_nothing(tmp_path, seed):
    with pytest.raises(BadValueError, match=r"the journal's seed is .*; give a whole number"):
        sgl.journal(tmp_path / "run.jsonl", sgl.Scripted({}), seed=seed)
    assert not (tmp_path / "run.jsonl").exists()


@pytest.mark.parametrize("again", [sgl.journal, sgl.resume])
def test_another_model_is_warned_of_at_the_line_that_resumes(tmp_path, again):
    path = tmp_path / "run.jsonl"
    another = sgl.Scripted({})
    another.get_model_name = lambda: "another"
    sgl.journal(path, another).close()
    with pytest.warns(UserWarning, match="was recorded with another; what is missing comes from scripted") as told:
        again(path, sgl.Scripted({})).close()
    assert told[0].filename == __file__


def test_a_file_in_which_nothing_is_takes_the_seed(tmp_path):
    (tmp_path / "run.jsonl").touch()
    with sgl.journal(tmp_path / "run.jsonl", sgl.Scripted({}), seed=7) as backend:
        assert backend.journal.header["seed"] == 7


def test_one_that_nothing_ran_on_says_so(tmp_path):
    """Somebody has opened it and forgotten to hand it on."""
    with (
        pytest.warns(UserWarning, match=r"no program ran on the journal .*run\(backend=journal\)"),
        sgl.record(tmp_path / "a.jsonl", sgl.Scripted({})),
    ):
        pass

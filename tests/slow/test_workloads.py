"""The benchmarks on programs: what is switched off changes the work and not the
answers, and the peers do the same work.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.workloads import agents, chat, judge, react, report, retrieval, skeleton_of_thought, tree_of_thought  # noqa: E402
from benchmarks.workloads.every import WORKLOADS  # noqa: E402
from benchmarks.workloads.ours import Ours  # noqa: E402
from benchmarks.workloads.peer_calls import Transformers, load  # noqa: E402
from benchmarks.workloads.picture import draw  # noqa: E402
from benchmarks.workloads.pieces import same  # noqa: E402
from benchmarks.workloads.switches import settings  # noqa: E402

SHORT = 4  # tokens of a gen here
LEFT_OUT = ("no grammar", "no batching", "no prefix cache", "no reuse")  # it changes answers; is in "all off"
MODEL = str(ROOT / "runtime/nano")


@pytest.fixture(scope="module")
def ours():
    """An engine whose rounding does not depend on what else is computed beside."""
    patch = pytest.MonkeyPatch()
    for module, names in (
        (react, ("THOUGHT", "ANSWER")),
        (tree_of_thought, ("TOKENS", "ANSWER")),
        (judge, ("REASON", "SUMMARY")),
        (skeleton_of_thought, ("OUTLINE", "TOKENS", "CLOSING")),
        (retrieval, ("QUERY", "ANSWER")),
    ):
        for name in names:
            patch.setattr(module, name, SHORT)
    patch.setattr(tree_of_thought, "WIDTH", 2)
    patch.setattr(judge, "DIMENSIONS", judge.DIMENSIONS[:2])
    patch.setattr(agents, "TOKENS", dict.fromkeys(agents.TOKENS, SHORT))
    with Ours(dtype="float32", deterministic=True, kv_tokens=16_384) as ours:
        yield ours
    patch.undo()


def items(name: str, count: int = 2):
    """With little to read: that is most of the work of such short answers."""
    some = WORKLOADS[name].items(count)
    for item in some:
        item.update(
            {
                key: value
                for key, value in (("tokens", SHORT), ("examples", item.get("examples", [])[:3]))
                if key in item
            }
        )
        item.update({key: [text[:80] for text in item[key]] for key in ("seen", "questions") if key in item})
        item.update({key: item[key][:200] for key in ("essay", "topic", "passages") if key in item})
    return some


@pytest.mark.whole
@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_switched_off_changes_no_answer(ours, name):
    work, some = WORKLOADS[name], items(name, 1)
    ways = {way: switches for way, switches in settings(work).items() if way not in LEFT_OUT}
    runs = {way: ours.run(work, some, switches) for way, switches in ways.items()}
    whole = runs["everything on"]
    for way, run in runs.items():
        assert run.answers == whole.answers, way
    assert runs["all off"].counts["cached_tokens"] == 0
    assert runs["all off"].counts["computed_tokens"] >= whole.counts["computed_tokens"]


@pytest.mark.whole
def test_each_switch_does_what_it_says(ours):
    work, some = WORKLOADS["judge"], items("judge")
    ways = {name: ours.run(work, some, switches).counts for name, switches in settings(work).items()}
    everything = ways["everything on"]
    assert ways["no fusion"]["computed_tokens"] == everything["computed_tokens"]
    assert ways["no prefix cache"]["cached_tokens"] < everything["cached_tokens"]  # what forks share is still shared
    assert ways["no reuse"]["computed_tokens"] > 2 * ways["requests"]["computed_tokens"]
    assert len({counts["generated_tokens"] for counts in ways.values()}) == 1


@pytest.mark.whole
def test_jumps_are_switched_off(ours):
    work, some = WORKLOADS["json_decoding"], items("json_decoding")
    ways = {name: ours.run(work, some, switches).counts for name, switches in settings(work).items()}
    assert ways["everything on"]["forced_tokens"] > 0 == ways["no jump-forward"]["forced_tokens"]
    assert ways["no jump-forward"]["steps"] > ways["everything on"]["steps"]
    assert ways["no grammar"]["generated_tokens"] == 2 * ours.free_tokens(work, 2)


@pytest.mark.whole
@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "json_decoding"])
def test_transformers_does_the_same_work(ours, transformers, name):
    """JSON apart, where it writes freely.

    Of the texts, the first ones: what it wrote it encodes anew for the next call.
    """
    work = WORKLOADS[name]
    mine = ours.run(work, items(name))
    made = transformers.made
    theirs = work.by_calls(transformers, items(name))
    assert transformers.made - made == mine.counts["generated_tokens"]
    equal, of = same(theirs, mine.answers, work.decisions + work.texts[:1])
    assert equal == of, (theirs, mine.answers)


@pytest.fixture(scope="module")
def transformers():
    return Transformers(*load(MODEL, torch.float32))


def test_items_are_the_same_in_every_run():
    for work in WORKLOADS.values():
        assert work.items(3) == work.items(3) and work.items(3)[:2] == work.items(2)
        assert len(work.items(work.programs)) == work.programs
    assert chat.LONG.items(1) != chat.SHORT.items(1)


def test_a_prompt_too_many_tokens_for_a_choice_is_refused(transformers):
    with pytest.raises(ValueError, match=r"'not one token' is \d tokens"):
        transformers.choose(["Say: "], ["good", "not one token"])


def figures():
    run = {
        "seconds": 1.0,
        "steps": 1,
        "computed_tokens": 2,
        "cached_tokens": 3,
        "forced_tokens": 4,
        "generated_tokens": 5,
        "same_decisions": [1, 1],
        "same_texts": [0, 0],
    }
    peer = {
        "workload": "react",
        "who": "guidance",
        "programs": 4,
        "sgl_seconds": 2.0,
        "seconds": 8.0,
        "sgl_made": 100,
        "made": 200,
        "same_decisions": [3, 4],
        "same_texts": [0, 2],
        "valid_json": [0, 0],
        "versions": {"guidance": "9"},
        "dtype": "float32",
        "note": "item by item",
    }
    return [
        peer,
        {"workload": "react", "who": "sgl", "settings": {"everything on": run, "no fusion": {**run, "seconds": 0.5}}},
    ]


def test_the_report_counts_by_tokens_and_names_what_is_lost():
    assert report.ratios(figures()) == {"react": {"guidance": 2.0}}  # four times as long, for twice the tokens
    text = "\n".join(report.lines(figures()))
    assert "2.00x" in text and "same choices 3 of 4" in text and "200 tokens to sgl's 100" in text
    assert text.count("not ahead:") == 1 and "react: no fusion takes 0.50x" in text


def test_the_picture_is_svg():
    picture = ET.fromstring(draw(report.ratios(figures()), report.costs(figures())))
    texts = [element.text for element in picture.iter() if element.tag.endswith("text")]
    assert "react" in texts and "0.50x" in texts and "prefers-color-scheme: dark" in picture[0].text


@pytest.mark.whole
def test_it_runs_and_says_which_peer_is_missing(tmp_path):
    empty = tmp_path / "python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without its packages
    empty.chmod(0o755)
    command = [
        sys.executable,
        "-m",
        "benchmarks.workloads",
        "--short",
        "--only",
        "json_decoding",
        "--against",
        "sgl",
        "guidance",
        "--peers",
        str(empty),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"to install it: {empty} -m pip install guidance" in done.stdout
    assert "no jump-forward" in done.stdout and "all off" in done.stdout

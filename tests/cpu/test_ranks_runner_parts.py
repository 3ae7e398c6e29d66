"""Adapters and other weights over the GPU's runners of two ranks, on the CPU with
kernels interpreted: the texts are those of one.
"""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with GPUs, tests/gpu does the same", allow_module_level=True)

from checkpoints import write_checkpoint, write_tokenizer
from family_cases import write_family
from family_checks import reference
from gpu_runner import pretend
from peft_adapters import make_adapter
from plain_adapters import write_adapter
from rank_threads import TurnRanks, Turns
from test_adapters_experts import CASES as EXPERTS
from test_kv_scales import LAYERS, WRITERS, scales, written
from test_ranks_runner import Follower, TurnLinks, leader_of

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.build import build_adapters, build_engine
from sgl.runtime.build.build_ranks import RanksBuilder
from sgl.runtime.errors import CheckpointError
from sgl.runtime.executor.ranks import rank_steps
from sgl.runtime.executor.ranks.gpu_rank_worker import GPURankWorker
from sgl.runtime.executor.ranks.step_plan_message import SequenceMirrors, plan_message
from sgl.runtime.layers.float8_reference import KVScaleFactors
from sgl.runtime.loop.weight_update import WeightUpdater
from sgl.runtime.parallel.workers.rank_weights import RankWeights
from sgl.runtime.parallel.workers.worker_channel import ASK, STEP, TELL, WAKE, RankKVOptions, RankStart
from sgl.runtime.sequences.sequence_options import USUAL
from sgl.runtime.sequences.sequence_state import ScheduledWork, SequenceState
from sgl.runtime.step.adapter_rows import NONE

CPU = torch.device("cpu")
GREEDY = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
OWNERS = [None, "0", "1", "0", "2"]
KINDS: dict[str, dict[str, Any]] = {
    "dora": {"dora": True, "rank": 8},
    "ends": {"biases": True, "ends": True},
    "tokens": {"rows": (31, 33)},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], dict[str, Path]]:
    """A model, another, one whose last layer lacks a tensor; and three adapters."""
    place = tmp_path_factory.mktemp("parts")
    bases = [
        write_checkpoint(place / f"base{seed}", tokenizer=True, num_hidden_layers=2, seed=seed) for seed in range(2)
    ]
    return bases, {str(i): write_adapter(bases[0], place / str(i), i, 8 + 8 * (i % 2)) for i in range(3)}


@pytest.fixture(scope="module")
def kinds(made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters that have more than pairs."""
    place = tmp_path_factory.mktemp("kinds")
    return {name: write_adapter(made[0][0], place / name, i, **keys) for i, (name, keys) in enumerate(KINDS.items())}


class Member(Follower):
    """Rank 1: a `GPURankWorker` in a thread, which takes what a team would tell it."""

    def __init__(self, part: RankWeights, *args: Any) -> None:
        self._answers: deque[bytes] = deque()
        super().__init__(*args)
        part.sums = part.sums and self.ranks
        self.follower = GPURankWorker(part, self.model, SimpleNamespace(place=part.place), 0)
        self.follower.runner, self.follower._mirrors = self.runner, self._mirrors
        attention = self.runner.attention
        self.follower._pool, self.follower._attention = attention.pool, lambda: attention
        self.told: list[str] = []

    def step(self, words: bytes) -> None:
        self._words.append((STEP, words))

    def tell_each(self, name: str, arguments: list[tuple[Any, ...]]) -> None:
        (own,) = arguments
        self._words.append((TELL, pickle.dumps((name, own))))

    def ask(self, name: str, *arguments: Any, meanwhile: Any = lambda: None) -> list[Any]:
        return self.ask_each(name, [arguments], meanwhile)

    def ask_each(self, name: str, arguments: list[tuple[Any, ...]], meanwhile: Any = lambda: None) -> list[Any]:
        self.told.append(name)
        with self._turns.turn:
            answer = self._asked((ASK, pickle.dumps((name, arguments[0]))), meanwhile)
        found, error = pickle.loads(answer)
        if error is not None:
            raise error
        return [found]

    def wake(self) -> None:
        with self._turns.turn:
            self._asked((WAKE, b""), lambda: None)

    def _asked(self, word: tuple[int, bytes], meanwhile: Any) -> bytes:
        self._words.append(word)
        meanwhile()
        self._turns.turn.notify_all()
        assert self._turns.turn.wait_for(lambda: bool(self._answers), 60)
        return self._answers.popleft()

    def run(self) -> None:
        with self._turns.turn:
            while True:
                self._turns.turn.wait_for(lambda: bool(self._words))
                kind, payload = self._words[0]
                try:
                    answer = self.follower.take(kind, payload)
                except BaseException as error:
                    self.error = error
                    raise
                self._words.popleft()
                self.steps += kind == STEP
                if kind in (ASK, WAKE):
                    self._answers.append(answer)
                self._turns.turn.notify_all()


def two_ranks(monkeypatch: pytest.MonkeyPatch, path: Path, stages: int) -> list[Any]:
    """Engines that are opened from here on are rank 0 of two; the follower and rank 0's runner, once one is."""
    pretend(monkeypatch)
    monkeypatch.setattr(rank_steps, "_mark", lambda: SimpleNamespace(query=lambda: True))
    turns, made, sent = Turns(2), [], (deque(), deque())
    ranks, begin = (
        TurnRanks(0, turns),
        RankStart(0, 2, "", str(path), torch.float32, CPU, 1, None, "auto", None, "auto", False, stages),
    )
    parts = [RankWeights(begin._replace(rank=rank), None) for rank in range(2)]
    if stages == 2:
        ranks.broadcast = lambda x: None
    else:
        parts[0].sums, parts[1].sums = ranks, TurnRanks(1, turns)
    side = RanksBuilder.__new__(RanksBuilder)
    side.part, side.ranks = parts[0], ranks

    def runner(model: Any, attention: Any, config: Any, choice: Any, context: int, *rest: Any) -> Any:
        member = Member(parts[1], path, turns, attention.pool, config, context, sent if stages == 2 else None)
        links = TurnLinks(model, turns, sent) if stages == 2 else None
        leader = leader_of(model, attention, config, context, member, ranks, links=links)
        made.extend([member, leader])
        side.team = member
        return leader

    def adapters(model: Any, config: Any, choice: Any, *rest: Any) -> Any:
        several = replace(config, tensor_parallel=2 // stages, pipeline_parallel=stages)
        return build_adapters.make_adapters(model, several, choice, side)

    monkeypatch.setattr(build_engine, "make_runner", runner)
    monkeypatch.setattr(build_engine, "load_model", lambda *args: parts[0].join(parts[0].load()))
    monkeypatch.setattr(build_engine, "make_adapters", adapters)
    monkeypatch.setattr(build_engine, "WeightUpdater", lambda *args: WeightUpdater(*args[:7], side))
    return made


def texts(engine: Engine, owners: list[str | None] = OWNERS) -> list[list[int]]:
    engine.flush_cache()
    sequences = [engine.open(adapter=owner) for owner in owners]
    for i, sequence in enumerate(sequences):
        sequence.extend(list(range(30 + i, 36 + i)))
    found = [future.result(60).token_ids for future in [sequence.generate(GREEDY) for sequence in sequences]]
    for sequence in sequences:
        sequence.close()
    return found


@pytest.mark.whole
@pytest.mark.parametrize("stages", [1, 2])
def test_adapters_come_and_go_and_weights_are_others_and_back(made, stages, monkeypatch):
    bases, folders = made
    options: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "kv_tokens": 2048,
        "max_running": 8,
        "step_tokens": 24,
        "run_ahead": True,
    }
    options |= {"adapters": folders, "adapter_slots": {8: 1, 16: 1}}  # fewer than adapters
    with Engine(bases[0], **options) as engine:
        expected = [texts(engine)]
        engine.update_weights(bases[1])
        expected.append(texts(engine))
    assert expected[0] != expected[1] and len({*map(tuple, expected[0])}) > 3
    parts = two_ranks(monkeypatch, bases[0], stages)
    with Engine(bases[0], **options) as engine:
        member, leader = parts
        assert engine.info()["adapters"]["executor"] == "fused" and member.told == ["set_aside"]
        assert [slot.rank for slot in member.follower.runner.adapters.slots.slots] == [8, 16]
        assert texts(engine) == texts(engine) == expected[0]
        assert engine.stats().adapters["slot_evictions"] > 0
        before = leader._static.keys() == member.runner._static.keys() and {blocks for _, blocks in leader._static}
        assert before and max(before) > 0 and leader._graphs._runs == member.runner._graphs._runs
        with pytest.raises(CheckpointError):
            engine.update_weights(folders["0"])
        assert "let_go" not in member.told
        engine.update_weights(bases[1])
        assert member.told[-3:] == ["plan", "let_go", "fill"] and not leader._static
        assert texts(engine) == expected[1]
        engine.update_weights(bases[0])  # and a graph that is captured anew
        assert texts(engine) == expected[0]
    with member._turns.turn:
        assert member._turns.turn.wait_for(lambda: member.error or member.steps == leader.progress.launched, 60)
    assert member.error is None
    assert member.model.adapted._made  # whose layers are those of the last weights
    member.model.allocate(1)
    assert not member.model.adapted._made


@pytest.mark.whole
@pytest.mark.parametrize("stages", [1, 2])
def test_adapters_that_have_more_than_pairs(made, kinds, stages, monkeypatch):
    """Plain rows keep their graphs, which both ranks have."""
    (base, _), folders = made
    options: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "kv_tokens": 2048,
        "max_running": 8,
        "step_tokens": 24,
        "run_ahead": True,
    }
    options |= {"adapters": kinds | {"0": folders["0"]}, "adapter_slots": {8: 4}}
    owners = [None, "dora", "0", "ends", "tokens", "dora"]
    with Engine(base, **options) as engine:
        expected, outside = (
            [texts(engine, each) for each in (owners, ["0", None])],
            engine.info()["adapters"]["outside"],
        )
    assert len({*map(tuple, expected[0])}) > 4
    parts = two_ranks(monkeypatch, base, stages)
    with Engine(base, **options) as engine:
        member, leader = parts
        assert engine.info()["adapters"]["outside"] == outside and set(outside) == set(kinds)
        assert texts(engine, owners) == expected[0]
        for _ in range(2):
            assert texts(engine, ["0", None]) == expected[1]
        assert leader._static.keys() == member.runner._static.keys() and any(blocks for _, blocks in leader._static)
    assert member.error is None


def test_adapters_of_experts(tmp_path, monkeypatch):
    """Cut by width; rows of such adapters go by torch, on both ranks."""
    (architecture, keys), lora = EXPERTS["all parameters"]
    model = reference(architecture, **keys)
    model.save_pretrained(tmp_path / "base")
    make_adapter(model, tmp_path / "a", **lora)
    options: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "kv_tokens": 512,
        "max_running": 4,
        "step_tokens": 24,
        "run_ahead": True,
    }
    options |= {"adapters": {"a": tmp_path / "a"}, "adapter_slots": {8: 1}}
    base, found = write_tokenizer(tmp_path / "base"), []
    for ranks in (1, 2):
        parts = two_ranks(monkeypatch, base, 1) if ranks == 2 else []
        with Engine(base, **options) as engine:
            assert engine.info()["adapters"]["outside"] == {"a": "a mixture of experts"}
            found.append(texts(engine, ["a", None, "a"]))
    assert found[0] == found[1] and parts[0].error is None


def test_a_follower_divides_by_the_scales_of_its_checkpoint_and_of_others(tmp_path, monkeypatch):
    pretend(monkeypatch)
    path, other = (
        written(tmp_path / name, scales(WRITERS["attn"], layers))
        for name, layers in (("a", LAYERS), ("b", [KVScaleFactors(4.0, 3.0)] * 3))
    )
    part = RankWeights(RankStart(1, 2, "", str(path), torch.float32, CPU, 1, None, "auto", None, "auto", False), None)
    follower = GPURankWorker(part, part.load(), SimpleNamespace(place=part.place, ranks=2), 0)
    follower.make_room(RankKVOptions(64, torch.float8_e4m3fn, "torch_native", 1, 4, 64, False))
    layout = follower.model.config.attention

    def ask(name: str, *arguments: Any) -> Any:
        return pickle.loads(follower.take(ASK, pickle.dumps((name, arguments))))

    assert [layout.scales(follower._pool, layer) for layer in layout.places] == LAYERS
    size, error = ask("plan", other)
    assert size > 0 and error is None and ask("fill") == (None, None)
    assert {layout.scales(follower._pool, layer) for layer in layout.places} == {KVScaleFactors(4.0, 3.0)}
    assert isinstance(ask("plan", tmp_path / "nowhere")[1].error(), CheckpointError)


def test_a_follower_scales_pools_of_windows_apart(tmp_path, monkeypatch):
    """Where each layer's keys and values lie in them: rank 0 asks the layout with windows apart, too."""
    pretend(monkeypatch)
    path = write_tokenizer(write_family("gemma2, low caps", tmp_path))
    part = RankWeights(RankStart(1, 2, "", str(path), torch.float32, CPU, 1, None, "auto", None, "auto", False), None)
    follower = GPURankWorker(part, part.load(), SimpleNamespace(place=part.place, ranks=2), 0)
    layout = follower.model.config.attention.apart(64)
    said = [KVScaleFactors(float(number), number + 0.5) for number in range(1, 1 + len(layout.layers))]
    follower.model.kv_scales = said
    follower.make_room(RankKVOptions(64, torch.float8_e4m3fn, "torch_native", 1, 4, 64, False, window_slots=32))
    assert (
        layout.windowed
        and layout == follower._layout
        and [layout.scales(follower._pool, layer) for layer in layout.places] == said
    )


@pytest.mark.parametrize("seed", range(5))
def test_mirrors_have_the_slots_of_rank_0_s_adapters(seed):
    rng, mirrors = np.random.default_rng(seed), SequenceMirrors(4)
    for _ in range(20):
        rows = rng.permutation(4)[: rng.integers(1, 5)].tolist()
        slots, work = rng.integers(NONE, 3, len(rows)).tolist(), []
        for row in rows:
            seq = SequenceState(row)
            seq.tokens.extend(np.arange(3))
            seq.slots.extend(np.arange(3))
            seq.ops.append(
                SimpleNamespace(rows=lambda seq, lo, hi: range(hi - 1, hi), pool=lambda seq, lo, hi: range(0))
            )
            work.append(ScheduledWork(seq, 0, 3))
        told = mirrors.work(plan_message(work, rows, slots))
        assert [seq.terms for seq, *_ in told] == [
            USUAL if slot == NONE else USUAL._replace(adapter=str(slot)) for slot in slots
        ]
        assert [seq.terms for seq, *_ in mirrors.work(plan_message(work, rows))] == [USUAL] * len(rows)

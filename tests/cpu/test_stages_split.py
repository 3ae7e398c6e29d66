"""What each stage holds of a model: families over two and three stages compute what
one computes; cuts are the best there are.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint
from family_cases import FAMILIES, write_family
from family_checks import close, prompt
from family_cover import covered
from gguf_convert import write_twin
from loaded_models import load_stage
from rig import Rig, Row
from test_quantized_loading import FORMATS, write

from sgl.runtime.cache.recurrent_state_slots import SCRAP_SLOT
from sgl.runtime.errors import ConfigError
from sgl.runtime.executor.logit_rows import logit_rows
from sgl.runtime.executor.ranks.micro_batches import FIXED_ON_GPUS, micro_batches, pieces
from sgl.runtime.executor.warmup import FIRST, LONG, dummy_sequences
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.models import ModelSpec
from sgl.runtime.parallel.pp.pipeline_stages import (
    RankPlace,
    balanced_boundaries,
    sizes,
    stage_boundaries,
    stage_checkpoint,
    stage_of,
)
from sgl.runtime.parallel.tp.tensor_parallel_split import TensorParallelSplit
from sgl.runtime.sequences.sequence_state import ScheduledWork, SequenceOp, SequenceState

CPU = torch.device("cpu")


class StageRig(Rig):
    """A rig of one stage, which takes what the stage before has given."""

    entering: torch.Tensor | None = None

    def run(self, batch):
        batch.entering, batch.keeps = self.entering, not self.model.config.stage.ends
        return super().run(batch)


def walk(tokens: list[int]) -> list[list[tuple[Row, int]]]:
    one, other = Row(tokens[:20]), Row(tokens[20:33])
    return [[(one, 7), (other, 12)], [(other, 1), (one, 12)], [(one, 1)]]


def steps_of_stages(path: Path, stages: int, work: list[list[tuple[Row, int]]]) -> list[torch.Tensor]:
    models = [
        load_stage(path, torch.float32, CPU, RankPlace(number, stages, TensorParallelSplit(0, 1)))
        for number in range(stages)
    ]
    rigs, rows = [StageRig(path, model=model) for model in models], [{} for _ in models]
    found = []
    for step in work:
        x = None
        for rig, own in zip(rigs, rows, strict=True):
            rig.entering = x
            x = rig.step(
                [(own.setdefault(id(row), Row(row.tokens)), count) for row, count in step], every_row=True
            ).clone()
        found.append(x)
    return found


def uncut(model: ModelSpec) -> str | None:
    """Why it stays on one stage."""
    try:
        stage_boundaries(model, 2)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.few(12)
@pytest.mark.parametrize("case", covered(FAMILIES, refused=uncut))
def test_two_stages_compute_what_one_computes(case: str, tmp_path: Path) -> None:
    path = write_family(case, tmp_path)
    model = open_checkpoint(path).model
    if model.per_layer is not None or len(model.layers) < 2:
        with pytest.raises(ConfigError, match="pipeline_parallel=2"):
            stage_boundaries(model, 2)
        return
    tokens = prompt(model.vocab_size)
    try:
        stage_boundaries(model, 2)
    except ConfigError as error:  # two layers, of which one reads what the other has stored
        assert len(model.layers) == 2 and "1 stages at most" in str(error)
        return
    rig = Rig(path)
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    for found, asked in zip(steps_of_stages(path, 2, walk(tokens)), expected, strict=True):
        close(found, asked, 2e-5, case)


def test_three_stages_and_a_tied_head(tiny: Path) -> None:
    tokens = prompt(open_checkpoint(tiny).model.vocab_size)
    rig = Rig(tiny)
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    for found, asked in zip(steps_of_stages(tiny, 3, walk(tokens)), expected, strict=True):
        close(found, asked, 2e-5, "three stages")


@pytest.mark.parametrize("form", [*FORMATS, "BF16", "Q8_0"])
def test_stages_of_weights_in_few_bits(form: str, tmp_path: Path) -> None:
    """From few-bit checkpoints, and from a GGUF file whose head is the embedding or is not."""
    if form in FORMATS:
        path = write(tmp_path, *FORMATS[form], leave=("layers.1.mlp.down_proj.weight",))[0]
    else:
        folder = write_checkpoint(tmp_path, tie_word_embeddings=form == "Q8_0")
        path = write_twin(folder, folder / "model.gguf", "llama", form)
    tokens, rig = prompt(open_checkpoint(path).model.vocab_size), Rig(path)
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    for found, asked in zip(steps_of_stages(path, 3, walk(tokens)), expected, strict=True):
        close(found, asked, 2e-5, form)


def test_a_stage_reads_its_own_tensors_and_no_others(tiny: Path) -> None:
    checkpoint = open_checkpoint(tiny)
    cuts = stage_boundaries(checkpoint.model, 2)
    names = [
        {stored.name for source in stage_checkpoint(checkpoint, cuts, number).sources for stored in source.tensors}
        for number in range(2)
    ]
    whole = {stored.name for source in checkpoint.sources for stored in source.tensors}
    assert names[0] | names[1] == whole and names[0] & names[1] <= {"model.embed_tokens.weight"}
    with pytest.raises(ConfigError, match="3 layers can be cut into 3 stages at most"):
        stage_boundaries(checkpoint.model, 4)
    assert sum(sizes(checkpoint.model)) >= sum(
        len(stage_of(checkpoint.model, cuts, number).layers) for number in range(2)
    )


def test_a_layer_that_reads_another_ones_keys_finds_it_by_the_number_of_its_stage(tiny: Path) -> None:
    model = open_checkpoint(tiny).model
    reads = replace(model.layers[2], mixer=replace(model.layers[2].mixer, source=1))
    stage = stage_of(replace(model, layers=(*model.layers[:2], reads)), [0, 1, 3], 1)
    assert [layer.mixer.source for layer in stage.layers] == [None, 0]


@pytest.mark.parametrize("seed", range(30))
def test_cuts_are_the_best_there_are(seed: int) -> None:
    rng = random.Random(seed)
    costs = [rng.randrange(1, 30) for _ in range(rng.randrange(3, 9))]
    ends = sorted({len(costs), *(end for end in range(1, len(costs)) if rng.random() < 0.7)})
    parts = rng.randrange(1, len(ends) + 1)

    def largest(cuts: tuple[int, ...]) -> int:
        return max(sum(costs[a:b]) for a, b in pairwise(cuts))

    every = [(0, *inner, len(costs)) for inner in combinations(ends[:-1], parts - 1)]
    found = balanced_boundaries(costs, ends, parts)
    assert tuple(found) in every and largest(tuple(found)) == min(map(largest, every))


class Item:
    """A sequence, as far as a step's cut knows it."""

    draft = None

    class op:
        @staticmethod
        def pool(seq, lo, hi):
            return range(0)

    ops = (op,)


@pytest.mark.parametrize("seed", range(30))
def test_micro_batches_are_the_work_in_its_order(seed: int) -> None:
    rng = random.Random(seed)
    work = [
        ScheduledWork(Item(), lo := rng.randrange(50), lo + rng.choice([1, 1, 1, 7, 90, 400]))
        for _ in range(rng.randrange(1, 30))
    ]
    for item in work[:3]:
        item.seq.draft = rng.choice([None, "a draft"])
    stages = rng.randrange(2, 5)
    parts = pieces(work, stages)
    tokens = [(item.seq, at) for part in parts for item in part for at in range(item.lo, item.hi)]
    assert tokens == [(item.seq, at) for item in work for at in range(item.lo, item.hi)]
    assert len(parts) <= micro_batches(len(tokens), stages) <= 4 * stages and all(part for part in parts)
    assert all(
        len({id(part) for part in parts for item in part if item.seq is seq}) == 1
        for seq in {item.seq for item in work if item.seq.draft}
    )


def test_who_leaves_no_state_is_not_cut() -> None:
    """Others of the step leave theirs in the same slot."""
    work = [ScheduledWork(SequenceState(0), 0, length) for length in (300, 400)]
    for item in work:
        item.seq.ops.append(SequenceOp())
        item.seq.into = SCRAP_SLOT
    assert [[item[1:] for item in part] for part in pieces(work, 2, 256, states=True)] == [[(0, 300), (0, 400)]]
    assert len(pieces(work, 2, 256)) == 2
    work[1].seq.into = 7
    assert [[item[1:] for item in part] for part in pieces(work, 2, 256, states=True)] == [
        [(0, 300), (0, 50)],
        [(50, 400)],
    ]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_prompts_of_nobody_want_logits_once_however_they_are_cut(stages: int) -> None:
    """Otherwise the first stage waits for logits that the last one does not send."""
    for tokens in (*FIRST, *LONG):
        for count in (1, 3):
            parts = pieces(dummy_sequences(count, 0, tokens), stages, FIXED_ON_GPUS)
            assert sum(len(logit_rows(part)) for part in parts) == count
    assert len(pieces(dummy_sequences(1, 0, max(LONG)), stages, FIXED_ON_GPUS)) > 2


def test_few_tokens_are_not_cut() -> None:
    """What reading the weights takes is not won back."""
    assert [micro_batches(tokens, 2) for tokens in (1, 8, 16, 64, 1024)] == [1, 1, 1, 2, 8]

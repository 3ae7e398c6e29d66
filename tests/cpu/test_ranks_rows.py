"""Latent attention that ranks share out by rows: each stores the latents of all
tokens and attends for its own part of a step.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
from family_cases import write_family
from family_checks import close, prompt
from ranks_rig import steps_of_ranks
from rig import Rig, Row
from test_families_latent import in_few_bits

from sgl.runtime.layers.float8_reference import FP8
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.models.reference import reference_latent_attention
from sgl.runtime.quantization import quantized_transform
from sgl.runtime.step.rank_row_share import RankRowShare
from sgl.runtime.step.rank_rows import own_rows
from sgl.runtime.step.step_batch import DeviceBatch, StepBatch

CASES = [
    ("deepseek v2", 2, {}),
    ("deepseek v3, plain", 3, {"moe_intermediate_size": 24, "intermediate_size": 96}),
    ("kimi linear", 2, {"linear_num_heads": 4}),
    ("glm 4.7 flash, by layer", 2, {}),
    ("mistral 4", 4, {}),
    ("minicpm 3", 3, {"intermediate_size": 96}),
]


def walk(tokens: list[int]) -> list[list[tuple[Row, int]]]:
    """Sequences that are cut between ranks, and a step of fewer rows than ranks."""
    one, other = Row(tokens[:20]), Row(tokens[20:33])
    return [[(one, 7), (other, 12)], [(other, 1), (one, 12)], [(one, 1)]]


@pytest.mark.few(3)
@pytest.mark.parametrize("case, ranks, more", CASES)
def test_ranks_attend_for_rows_as_one_attends_for_all(
    case: str, ranks: int, more: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_latent_attention, "FRESH", 6 if ranks == 2 else 1000)
    path = write_family(case, tmp_path, **more)
    tokens = prompt(open_checkpoint(path).model.vocab_size)
    rig = Rig(path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    for attention in ("auto", "torch_native"):
        for found, asked in zip(
            steps_of_ranks(path, ranks, walk(tokens), by_rows=True, attention=attention), expected, strict=True
        ):
            close(found, asked, 5e-5, f"{case} {attention}")


def test_rows_in_eight_bits(tmp_path: Path) -> None:
    """Whose numbers may be rounded otherwise where sums over ranks round otherwise."""
    path = write_family("deepseek v3", tmp_path)
    tokens = prompt(open_checkpoint(path).model.vocab_size)
    rig = Rig(path, attention="torch_native", kept=FP8)
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    for found, asked in zip(steps_of_ranks(path, 2, walk(tokens), by_rows=True, kept=FP8), expected, strict=True):
        assert (found - asked).norm() < 0.02 * asked.norm()


@pytest.mark.parametrize("name", ["fp8 blocks", "awq"])
def test_checkpoints_in_few_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is whole on every rank is read as one process reads it, and multiplied no worse."""
    in_few_bits(name, tmp_path)
    alone = Rig(tmp_path / "few")
    rounded = [alone.step(step, every_row=True) for step in walk(prompt(320))]
    kept = steps_of_ranks(tmp_path / "few", 2, walk(prompt(320)), by_rows=True)
    monkeypatch.setattr(quantized_transform, "keep_quantized", lambda codes, layer: "the test restores them")
    restored, whole = (
        steps_of_ranks(tmp_path / "few", 2, walk(prompt(320)), by_rows=True),
        Rig(tmp_path / "whole", attention="torch_native"),
    )
    expected = [whole.step(step, every_row=True) for step in walk(prompt(320))]
    for found, asked in zip(restored, expected, strict=True):
        close(found, asked, 5e-5, name)
    ours, theirs, exact = (torch.cat(each) for each in (kept, rounded, expected))
    assert (ours - exact).norm() < 1.5 * (theirs - exact).norm() + 1e-4 * exact.norm()


def drawn_batch(rng: np.random.Generator, static: bool) -> StepBatch:
    """Of random sequences; static: as in a graph, of one token each."""
    lengths = [1] * int(rng.integers(1, 12)) if static else rng.integers(1, 9, rng.integers(1, 7)).tolist()
    contexts = [count + int(rng.integers(0, 9)) for count in lengths]
    slots = [rng.integers(1, 999, count) for count in contexts]
    positions = np.concatenate(
        [np.arange(context - count, context) for count, context in zip(lengths, contexts, strict=True)]
    )
    rows, total = torch.from_numpy(rng.permutation(len(lengths))), len(positions)
    device = DeviceBatch(
        rows,
        rows.repeat_interleave(torch.tensor(lengths)),
        torch.tensor([*accumulate(lengths, initial=0)]),
        torch.tensor(contexts),
        torch.empty(0),
        1,
        torch.empty(0),
        static,
    )
    new = np.concatenate([each[len(each) - count :] for each, count in zip(slots, lengths, strict=True)])
    return StepBatch(
        torch.arange(total),
        torch.from_numpy(positions),
        torch.from_numpy(new),
        lengths,
        contexts,
        slots,
        torch.arange(total),
        device=device,
    )


def seen(batch: StepBatch) -> list[tuple]:
    """Of each token what it is and what it sees, as the host has it and as the device has it."""
    found, device = [], batch.device
    for at, (length, context, slots) in enumerate(
        zip(batch.query_lens, batch.context_lens, batch.context_slots, strict=True)
    ):
        assert len(slots) == context == device.contexts[at] and device.starts[at + 1] - device.starts[at] == length
        for token in range(int(device.starts[at]), int(device.starts[at + 1])):
            position = int(batch.positions[token])
            assert (
                position == context - length + token - device.starts[at]
                and device.token_rows[token] == device.rows[at]
                and batch.slots[token] == slots[position]
            )
            found.append((int(batch.token_ids[token]), position, int(device.rows[at]), slots[: position + 1].tolist()))
    assert len(found) == len(batch.token_ids) == len(batch.positions) == len(batch.slots)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_ranks_have_each_row_once_and_see_what_it_sees(seed: int) -> None:
    rng, static = np.random.default_rng(seed), seed % 3 == 0
    batch, ranks = drawn_batch(rng, static), int(rng.integers(2, 6))
    parts = [own_rows(batch, RankRowShare(rank, ranks)) for rank in range(ranks)]
    assert [row for part in parts for row in seen(part.batch or batch)[: None if part.batch else 0]] == seen(batch)
    assert (
        max(part.rows.stop - part.rows.start for part in parts)
        - min(part.rows.stop - part.rows.start for part in parts)
        <= 1
    )
    for part in parts:
        if static and part.batch is not None:
            whole, own = batch.device, part.batch.device
            assert all(
                getattr(own, name).data_ptr() in range(each.data_ptr(), each.data_ptr() + each.nbytes)
                for name in ("rows", "token_rows", "starts", "contexts")
                for each in [getattr(whole, name)]
            )

"""Windowed layers with slots of their own as kernels on a GPU find them: a page table beside that of all layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

import layer_checks as checks
from family_cases import write_family
from gpu_runner import pretend
from rig import Rig
from states_rig import prompt, run
from test_gpu_parts import STEPS
from test_scheduler_pressure import FOREVER, some
from windows_rig import Make, make, paths, quiet, settled

from sgl.runtime.attention import attention_backend
from sgl.runtime.cache import WindowPages
from sgl.runtime.executor.gpu_page_table import GpuPageTable
from sgl.runtime.executor.step_arrays import StepArrays
from sgl.runtime.executor.warmup import dummy_sequences
from sgl.runtime.models import decoder
from sgl.runtime.sequences.sequence_state import ScheduledWork
from sgl.runtime.step.step_batch import StepBatch
from sgl.runtime.step.window_slots import LazyWindowSlots, WindowSlots

__all__ = ["make", "paths"]


class Apart(Rig):
    """Windowed layers have as many slots as all layers, in another order; what fell behind
    a window names one that holds NaN in the table.
    """

    def keep_apart(self, attention: str) -> None:
        layout, slots = self.model.config.attention.apart(512), self.pool.slots
        assert layout.windowed
        self.pool = layout.pool(slots, self.pool.dtype, "cpu", slots)
        self.pool.fill_nan(self.free)
        self.pool.fill_windows_nan(list(range(1, slots)))
        self.attention, self.reach = attention_backend(attention, self.pool, layout), layout.reach
        self.where = np.concatenate([[0], np.random.default_rng(3).permutation(np.arange(1, slots))]).astype(np.int32)

    def run(self, batch: StepBatch) -> torch.Tensor:
        device, seen = batch.device, []
        for slots, new in zip(batch.context_slots, batch.query_lens, strict=True):
            own = self.where[slots].copy()
            own[: max(0, len(slots) - new - self.reach + 1)] = 0
            seen.append(own)
        table = None
        if device is not None:
            table = torch.zeros_like(device.table)
            unused = self.where[self.free[0]]
            for row, own, new in zip(table, seen, batch.query_lens, strict=True):
                row[: len(own) - new] = torch.from_numpy(np.where(own == 0, unused, own)[: len(own) - new])
        batch.windows = WindowSlots(
            torch.from_numpy(self.where)[batch.slots.long()].to(batch.slots.dtype), LazyWindowSlots(lambda: seen), table
        )
        return super().run(batch)


class FusedApart(checks.FusedRig, Apart):
    """By the kernels, which find both tables on the device."""


def rig_of(path: Path, attention: str, kind: Any = FusedApart) -> Any:
    rig = kind(path, attention="torch_native")
    rig.keep_apart(attention)
    return rig


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "attention, case",
    [
        ("triton", "gemma3"),
        ("triton", "gpt-oss"),
        ("triton", "llama 4"),
        ("torch_native", "gemma3"),
        ("torch_native", "llama 4"),
    ],
)
def test_steps_equal_those_of_a_model_that_keeps_all(
    case: str, attention: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"head_dim": 16} if case != "gemma3" else {}
    path = write_family(case, tmp_path, **keys)
    law = Rig(path, attention="torch_native")
    law.model.step = None
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    rig = rig_of(path, attention)
    checks.lay_plain(rig.model)
    assert rig.model.execution_plan.whole
    checks.check_decoder(law, rig, 5e-5, STEPS)


def sequence(slots: list[int]) -> Any:
    seq = dummy_sequences(1, 0, len(slots))[0].seq
    seq.slots.array[:] = slots
    return seq


@pytest.mark.whole
@pytest.mark.parametrize("case, page_size", [("gemma3", 1), ("mistral", 4)])
def test_texts_by_the_runner_of_a_gpu(case: str, page_size: int, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, graphs, steps in pieces and forks, with rows that are given to others meanwhile."""
    cold, wanted = quiet(make, case), []
    prompts = [prompt(1, 70), prompt(1, 70)[:50] + prompt(2, 5), prompt(3, 60), prompt(1, 70)]
    for tokens in prompts:
        cold.flush_cache()
        wanted.append(run(cold, tokens, 12).token_ids)
    forked = [run(cold, prompts[0] + prompt(index, index), 8).token_ids for index in range(3)]
    pretend(monkeypatch)
    engine = make(
        case, kv_tokens=400, window_tokens=160, page_size=page_size, step_tokens=24, max_running=4, run_ahead=True
    )
    assert engine.info()["window_tokens"]
    assert [run(engine, tokens, 12).token_ids for tokens in prompts] == wanted
    parent = engine.open()
    parent.extend(prompts[0])
    children = parent.fork(3)
    for index, child in enumerate(children):
        child.extend(prompt(index, index))
    assert [future.result(FOREVER).token_ids for future in [child.generate(some(8)) for child in children]] == forked
    assert engine.stats().window_given_back and engine.stats().cached_tokens
    del parent, children, child
    settled(engine)


@pytest.mark.parametrize("size", [1, 4])
def test_a_row_of_the_table_has_the_places_of_its_pages(size: int) -> None:
    windows = WindowPages(64, 20, size, 5 * size)
    windows.give(np.array([7, 3, 9], np.int32))
    pages = [7, 3, 9]
    seq = sequence([page * size + offset for page in pages for offset in range(size)])
    table = GpuPageTable(2, 16 * size, size, torch.device("cpu"), windows)
    lo = 2 * size
    rows = table.place([ScheduledWork(seq, lo, 3 * size)], lambda array: torch.from_numpy(array))
    assert table.window_pages is not None
    assert table.pages[rows[0], :2].tolist() == [7, 3]
    assert table.window_pages[rows[0], :2].tolist() == windows.where[[7, 3]].tolist()
    step = StepArrays.of([ScheduledWork(seq, lo, 3 * size)], rows, windows=windows)
    assert step.arrays[-1].tolist() == [windows.where[9] * size + offset for offset in range(size)]
    batch = step.batch([torch.from_numpy(array) for array in step.arrays], table, torch.zeros(3, dtype=torch.int32))
    assert batch.windows is not None and batch.windows.table is table.window_pages and batch.state_read is None
    assert batch.windows.context_slots[0].tolist() == windows.slots(seq.slots.array[: 3 * size], lo).tolist()


def test_a_new_token_without_a_place_is_an_error() -> None:
    windows = WindowPages(64, 20, 1, 5)
    windows.give(np.array([7], np.int32))
    assert windows.slots_of(np.array([0, 7, 0], np.int32)).tolist() == [0, windows.where[7], 0]
    with pytest.raises(RuntimeError, match="no place"):
        windows.slots_of(np.array([7, 8], np.int32))

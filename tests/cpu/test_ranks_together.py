"""Stages of two ranks each with all at once: weights in few bits, adapters, a draft
model, prefixes in main memory, other weights.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from ranks_adapters import texts
from ranks_rig import alive, same, walk
from server_rig import await_true
from test_quantized_loading import FORMATS, write

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import EngineDied

OPTIONS = {
    "dtype": "float32",
    "threads": 1,
    "kv_tokens": 256,
    "page_size": 4,
    "max_running": 8,
    "host_kv": "500KB",
    "poison_freed": True,
}
FOUR = OPTIONS | {"pipeline_parallel": 2, "tensor_parallel": 2, "speculation": "auto"}
SLOTS = {8: 6}


@pytest.mark.whole
def test_all_at_once_and_a_rank_that_dies_over_it(tmp_path: Path, tiny: Path, adapters: list[Path]) -> None:
    few, _ = write(tmp_path / "a", *FORMATS["fp8 blocks"])
    other, _ = write(tmp_path / "b", *FORMATS["fp8 blocks"], seed=3)
    named = {f"a{number}": folder for number, folder in enumerate(adapters[:4])}
    with (
        Engine(few, **OPTIONS, adapters=named) as one,
        Engine(few, **FOUR, draft=tiny, adapters=named, adapter_slots=SLOTS) as four,
    ):
        shared = four.info()
        assert (
            shared["memory"]["adapters"]
            == shared["adapters"]["slot_bytes"]
            > one.info()["adapters"]["slot_bytes"] * 6 // 8
        )
        for _ in range(2):
            expected = texts(one, [None, *named], together=True)
            assert texts(four, [None, *named], together=True) == expected and len({*map(tuple, expected)}) > 2
            same(walk(four, 1), walk(one, 1))
            assert four.info()["few_bits"] and four.stats().drafted_tokens and four.stats().adapters["slot_loads"] == 4
            one.update_weights(other)
            four.update_weights(other)
        pids, running = four.info()["rank_pids"], four.open(adapter="a1")
        running.extend([5, 6, 7])
        endless = running.generate(SamplingParams(max_tokens=200, ignore_eos=True))
        os.kill(pids[3], signal.SIGKILL)
        with pytest.raises(EngineDied, match=r"rank 3 .*killed by SIGKILL"):
            endless.result(30)
            four.adapters.load("a9", adapters[9])
            four.update_weights(few)
            texts(four, ["a9"], together=True)
        await_true(lambda: not any(map(alive, pids)), 60)
        await_true(lambda: four.info()["rank_pids"] != pids and four._core.up, 180)
        assert texts(four, [None, *named], together=True) == texts(one, [None, *named], together=True)

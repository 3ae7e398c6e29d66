"""What ranks push over two cards, as tests/cpu/test_all_reduce.py has it interpreted: products that send
their parts, logits, tokens; late ranks, and graphs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")]


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_cards_write_to_each_other(tmp_path, ranks):
    if torch.cuda.device_count() < ranks:
        pytest.skip("needs more CUDA devices")
    script, environment = (
        Path(__file__).with_name("all_reduce_cuda_process.py"),
        os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-P", str(script), str(rank), str(ranks), str(tmp_path / "meeting")], env=environment
        )
        for rank in range(ranks)
    ]
    try:
        codes = [process.wait(150) for process in started]
    finally:
        for process in started:
            process.kill()
    assert codes == [0] * ranks

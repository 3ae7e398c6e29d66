"""The kernels that write to other ranks, interpreted in processes that share memory: sums are
torch's, in the ranks' order; what is posted arrives.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.whole
@pytest.mark.parametrize("what, ranks", [("sums", 2), ("sums", 3), ("letters", 2), ("ways", 2), ("ways", 3)])
def test_what_ranks_write_to_each_other(tmp_path, what, ranks):
    file = tmp_path / "memory"
    file.write_bytes(bytes(1 << 20))
    script = Path(__file__).with_name("all_reduce_process.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TRITON_INTERPRET": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-P", str(script), what, str(rank), str(ranks), str(file)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        words = [process.communicate(timeout=120)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * ranks, words

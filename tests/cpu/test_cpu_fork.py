"""A child of a fork computes with a team of its own, whatever its parent's was doing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from sgl.runtime.layers import cpu_kernels

PROGRAM = """
import os, threading, time, torch
torch.set_num_threads(1)
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.linear_layers import BlockedLinear
cpu_kernels.set_threads(4)
large, many = BlockedLinear(torch.randn(8192, 512), None), torch.randn(90, 512)
small, x, residual = BlockedLinear(torch.randn(640, 384), None), torch.randn(40, 384), torch.randn(40, 640)
expected, stop = small.added_to(residual.clone(), x), threading.Event()

def busy():
    while not stop.is_set():
        large(many)

def child():
    try:
        same = all(torch.equal(small.added_to(residual.clone(), x), expected) for _ in range(20))
        os._exit(not same)
    finally:
        os._exit(2)

thread = threading.Thread(target=busy)
thread.start()
codes = []
for _ in range(40):
    time.sleep(0.001)
    pid = os.fork()
    if not pid:
        child()
    codes.append(os.waitpid(pid, 0)[1])
stop.set()
thread.join()
assert not any(codes), codes
"""


@pytest.mark.whole
@pytest.mark.skipif(
    not cpu_kernels.can_multiply(torch.float32, torch.device("cpu")), reason="needs the compiled product"
)
def test_a_fork_while_a_product_runs() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr

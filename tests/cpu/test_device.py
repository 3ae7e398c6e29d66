"""What the engine decides to run with, and why it says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sgl.runtime.errors import ConfigError
from sgl.runtime.executor import cpu_flags, device_choice
from sgl.runtime.executor.device_choice import apply_threads, choose_device, cpu_quota, physical_cores
from sgl.runtime.layers import cpu_kernels


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    apply_threads(before)


def test_everything_asked_for_is_taken_as_asked() -> None:
    choice = choose_device("cpu", "float32", 3)
    assert (choice.device, choice.dtype, choice.threads) == (torch.device("cpu"), torch.float32, 3)
    assert str(choice).count("as asked") == 3


def test_auto_explains() -> None:
    choice = choose_device("cpu", threads=1)
    assert choice.dtype in (torch.float32, torch.bfloat16)
    assert "bfloat16" in choice.reasons[2]


@pytest.fixture
def bfloat16_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_flags, "cpu_flags", lambda: frozenset({"avx512_bf16"}))
    monkeypatch.setattr(device_choice, "can_pack_bfloat16", lambda: True)


@pytest.mark.skipif(cpu_kernels.kernels is None, reason="no compiled kernels")
@pytest.mark.usefixtures("bfloat16_cpu")
def test_compiled_products_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "can_multiply", lambda dtype, device: True)
    monkeypatch.setattr(device_choice, "_timed_products", lambda dtype, rows: pytest.fail("measured"))
    choice = choose_device("cpu", threads=1)
    assert choice.dtype == torch.bfloat16
    assert f"compiled products by {cpu_kernels.isa_variant(torch.bfloat16)} (avx512_bf16)" in choice.reasons[2]


@pytest.mark.usefixtures("bfloat16_cpu")
def test_all_engines_of_a_process_choose_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "kernels", None)
    first = choose_device("cpu", threads=1)
    assert "measured" in first.reasons[2]
    monkeypatch.setattr(device_choice, "_timed_products", lambda dtype, rows: pytest.fail("measured again"))
    assert choose_device("cpu", threads=1) == first


@pytest.mark.parametrize(
    "gains, dtype", [((1.9, 0.5), torch.bfloat16), ((0.9, 0.9), torch.bfloat16), ((0.9, 0.6), torch.float32)]
)
@pytest.mark.usefixtures("bfloat16_cpu")
def test_bfloat16_of_torch_is_taken_unless_it_is_much_slower(
    gains: tuple[float, float], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_kernels, "kernels", None)
    monkeypatch.setattr(device_choice, "_gains", lambda: gains)
    choice = choose_device("cpu", threads=1)
    assert (
        choice.dtype == dtype and f"{gains[0]:.1f}x as fast as float32 for 1 row, {gains[1]:.1f}x" in choice.reasons[2]
    )


def test_without_bfloat16_instructions_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_flags, "cpu_flags", lambda: frozenset({"avx2"}))
    monkeypatch.setattr(device_choice, "_timed_products", lambda dtype, rows: pytest.fail("measured"))
    choice = choose_device("cpu", threads=1)
    assert choice.dtype == torch.float32
    assert "no bfloat16 instructions" in choice.reasons[2]


def test_threads_never_exceed_cores_or_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_choice, "physical_cores", lambda cpus: 8)
    monkeypatch.setattr(device_choice, "_slowdown", lambda dtype, threads: 0.5)
    for quota, threads in ((None, 8), (2.5, 2), (0.5, 1), (100.0, 8)):
        monkeypatch.setattr(device_choice, "cpu_quota", lambda value=quota: value)
        assert choose_device("cpu", "float32").threads == threads


def test_threads_that_only_wait_for_each_other_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_choice, "physical_cores", lambda cpus: 4)
    monkeypatch.setattr(device_choice, "cpu_quota", lambda: None)
    monkeypatch.setattr(device_choice, "_slowdown", lambda dtype, threads: 30.0)
    choice = choose_device("cpu", "float32")
    assert choice.threads == 1
    assert "4 measured 30.0x slower" in choice.reasons[1]
    assert choose_device("cpu", "float32", 4).threads == 4


@pytest.mark.parametrize(
    "together, passes, threads",
    [
        ([1.4], 1, 4),  # fast enough at once
        ([30.0, 1.6, 1.4], 3, 4),  # other work held the cores for a moment
        ([30.0] * 20, device_choice.PASSES, 1),
    ],
)
def test_passes_on_all_threads_end_with_the_first_fast_one(
    together: list[float], passes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([1.0] * device_choice.PASSES + together)
    monkeypatch.setattr(device_choice, "physical_cores", lambda cpus: 4)
    monkeypatch.setattr(device_choice, "cpu_quota", lambda: None)
    monkeypatch.setattr(device_choice, "_timed_products", lambda dtype, rows: lambda: next(times))
    assert choose_device("cpu", "float32").threads == threads
    assert len(list(times)) == len(together) - passes


def test_flags_of_the_first_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_flags, "CPU_INFO", tmp_path / "cpuinfo")
    assert cpu_flags.cpu_flags() == frozenset()
    cpu_flags.CPU_INFO.write_text("processor\t: 0\n")
    assert cpu_flags.cpu_flags() == frozenset()
    cpu_flags.CPU_INFO.write_text("processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert cpu_flags.cpu_flags() == {"fpu", "avx2"}


def test_quotas_of_both_control_group_versions(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("300000\n")
    assert cpu_quota(tmp_path) == 3.0
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path) == 3.0


def test_hyper_threads_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_choice, "TOPOLOGY", tmp_path)
    for number, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert physical_cores([0, 1, 2, 3]) == 2
    assert physical_cores([0, 2]) == 1
    assert physical_cores([8, 9]) == 2


@pytest.mark.parametrize(
    "options, message",
    [
        ({"device": "warp"}, "device='warp' is not a device name"),
        ({"device": f"cuda:{torch.cuda.device_count()}"}, "torch sees"),
        ({"dtype": "float8"}, "dtype='float8' is unknown; use auto, float32"),
    ],
)
def test_errors(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_device(**options)

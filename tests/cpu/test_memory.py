"""How memory is shared out, and an engine that gives its memory away and takes it back."""

from __future__ import annotations

import dataclasses
import itertools
import mmap
import os
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from checkpoints import write_tokenizer
from family_cases import write_family

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.build import memory_plan
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.cache.kv_pool import PAD_SLOT, KVPool
from sgl.runtime.errors import ConfigError, EngineClosed
from sgl.runtime.executor.weight_offload import OffloadedWeights, tensors_of
from sgl.runtime.loading import load_model
from sgl.runtime.loop import engine_sleep
from sgl.runtime.memory.huge_pages import lazy_zeros, touched_of
from sgl.runtime.memory.touched_memory import untouched_bytes

GREEDY = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
CUDA = torch.device("cuda")
GB = 10**9
PROMPTS = ["The quick brown fox", "1 + 1 =", "lazy dog"]


def plan(**bytes_: int) -> memory_plan.MemoryPlan:
    return memory_plan.MemoryPlan(**{"total": 100 * GB, "free": 90 * GB} | bytes_)


def resolved(device: str = "cuda", **options: object):
    return EngineConfig.from_options(options).on(device)


# the options


def test_what_none_means_depends_on_the_device():
    cpu, gpu = resolved("cpu"), resolved("cuda")
    assert (cpu.step_tokens, cpu.max_running, cpu.run_ahead, cpu.graphs, cpu.memory) == (1024, 64, False, False, None)
    assert (gpu.step_tokens, gpu.max_running, gpu.run_ahead, gpu.graphs, gpu.memory) == (8192, 256, True, True, 0.92)
    assert resolved("cuda", speculation={}).run_ahead and not resolved("cuda", speculation={}, draft="x").run_ahead
    own = resolved("cuda", step_tokens=7, max_running=3, run_ahead=False, graphs=False, memory=0.5)
    assert (own.step_tokens, own.max_running, own.run_ahead, own.graphs, own.memory) == (7, 3, False, False, 0.5)


@pytest.mark.parametrize(
    "option, value, message",
    [
        ("memory", 0, "above 0 and up to 1"),
        ("memory", 1.5, "above 0 and up to 1"),
        ("memory", "all", "above 0 and up to 1"),
        ("weights", "int3", "must be auto, fp8, fp8_block, int8, int4, int4_hqq, int4_gptq, mxfp4 or nvfp4"),
        ("kv_dtype", "int8", "must be auto or fp8"),
        ("graphs", "yes", "must be True or False"),
        ("deterministic", 2, "must be True or False"),
        ("run_ahead", "no", "must be True, False or None"),
        ("max_running", 0, "positive whole number"),
        ("step_tokens", True, "positive whole number"),
    ],
)
def test_bad_values_are_named(option, value, message):
    with pytest.raises(ConfigError, match=rf"Engine\({option}={value!r}\).*{message}"):
        EngineConfig.from_options({option: value})


def test_fp8_weights_need_a_gpu():
    with pytest.raises(
        ConfigError, match=r"weights='fp8'\) needs a CUDA device, here: cpu; on the CPU 'fp8_block' keeps float8 too"
    ):
        resolved("cpu", weights="fp8")
    assert resolved("cpu", kv_dtype="fp8").kv_dtype == "fp8"


@pytest.mark.parametrize("weights", ["int8", "int4", "int4_hqq", "nvfp4", "mxfp4", "fp8_block"])
def test_weights_of_few_bits_are_for_the_cpu_and_cuda(weights):
    assert resolved("cpu", weights=weights).weights == resolved("cuda", weights=weights).weights == weights
    with pytest.raises(
        ConfigError, match=rf"weights='{weights}'\) is for the CPU and CUDA, here: xpu; use weights='auto'"
    ):
        resolved("xpu", weights=weights)


# the plan


def test_the_kv_pool_takes_what_the_share_leaves():
    taken = plan(weights=16 * GB, activations=GB, reserved=GB)
    full = memory_plan.plan_with_kv(taken, resolved(memory=0.9), 131_072, CUDA)
    assert 0 <= 0.9 * 90 * GB - 18 * GB - full.kv < 131_072
    paged = memory_plan.plan_with_kv(taken, resolved(memory=0.9, page_size=16), 131_072, CUDA)
    assert paged.kv % (16 * 131_072) == 0 and 0 <= full.kv - paged.kv < 16 * 131_072
    assert memory_plan.plan_with_kv(taken, resolved(kv_tokens=1000), 131_072, CUDA).kv == 131_072_000
    assert memory_plan.plan_with_kv(taken, resolved(kv_memory="2GB"), 10**6, CUDA).kv == 2 * GB
    assert memory_plan.plan_with_kv(taken, resolved(), 100, CUDA).kv == 100 * memory_plan.GPU_TOKENS


def test_no_room_states_every_part_and_the_knob():
    taken = plan(weights=80 * GB, activations=2 * GB, reserved=3 * GB)
    with pytest.raises(ConfigError) as caught:
        memory_plan.plan_with_kv(taken, resolved(), 131_072, CUDA)
    for part in (
        "weights 80.00 GB",
        "activations 2.00 GB",
        "graphs and workspaces 3.00 GB",
        "others 10.00 GB",
        "90.00 of 100.00 GB were free",
        "raise memory, now 0.92",
    ):
        assert part in str(caught.value)
    with pytest.raises(ConfigError, match=r"KV cache of 6.00 GB has no room.*kv_memory, now '6GB'"):
        memory_plan.plan_with_kv(taken, resolved(kv_memory="6GB"), 10**6, CUDA)


def test_on_the_cpu_a_pool_beyond_main_memory_is_refused():
    asked = resolved("cpu", kv_memory="900GB")
    with pytest.raises(ConfigError, match=r"KV cache of 900.00 GB has no room.*kv_memory, now '900GB'"):
        memory_plan.plan_with_kv(plan(), asked, 10**6, torch.device("cpu"))


def test_on_the_cpu_a_pool_beyond_what_is_free_now_is_refused(monkeypatch):
    monkeypatch.setattr(memory_plan, "free_memory", lambda: 4 * GB)
    cpu, asked = torch.device("cpu"), resolved("cpu", kv_memory="3GB")
    assert memory_plan.plan_with_kv(plan(), asked, 10**6, cpu).kv == 3 * GB
    with pytest.raises(ConfigError, match=r"KV cache of 3.00 GB has no room.*kv_memory, now '3GB'"):
        memory_plan.plan_with_kv(plan(adapters=2 * GB), asked, 10**6, cpu)


def test_on_the_cpu_a_quarter_of_what_is_free(monkeypatch):
    monkeypatch.setattr(memory_plan, "free_memory", lambda: 4 * GB)
    cpu = torch.device("cpu")
    assert memory_plan.plan_with_kv(plan(), resolved("cpu"), 10**6, cpu).kv == GB
    assert memory_plan.plan_with_kv(plan(adapters=GB), resolved("cpu"), 10**6, cpu).kv == 3 * GB // 4
    assert memory_plan.plan_with_kv(plan(), resolved("cpu"), 10, cpu).kv == 10 * memory_plan.CPU_TOKENS
    monkeypatch.setattr(memory_plan, "free_memory", lambda: 89 * GB)
    assert memory_plan.plan_with_kv(plan(weights=GB), resolved("cpu", memory=0.5), 10**6, cpu).kv == 44 * GB


def test_a_real_plan_of_this_machine():
    found = memory_plan.plan_before_loading(torch.device("cpu"))
    assert 0 < found.free <= found.total


@pytest.mark.parametrize("step_tokens", [7, 300, 1200])
def test_the_dummy_step_is_a_full_one(tiny, step_tokens):
    model = load_model(tiny)
    config = resolved("cpu", step_tokens=step_tokens, max_running=10)
    batch = memory_plan.dummy_batch(config, 512, torch.device("cpu"))
    assert len(batch.token_ids) == len(batch.positions) == sum(batch.query_lens) == step_tokens
    assert max(batch.query_lens) <= 512 and int(batch.positions.max()) < 512
    logits = memory_plan.dummy_step(model, config, 512)
    assert logits.shape == (min(10, step_tokens), model.config.vocab_size)


# moving memory


def test_a_pool_comes_back_empty():
    pool = KVPool(2, 5, 1, 4)
    pool.k.fill_(3)
    size = pool.bytes
    pool.release()
    assert pool.bytes == 0 and pool.slots == 0
    pool.restore()
    assert pool.bytes == size and not pool.k.any()


def test_fp8_pools_are_poisoned_too():
    pool = KVPool(2, 5, 1, 4, torch.float8_e4m3fn)
    pool.fill_nan([2])
    assert pool.k.float()[:, 2].isnan().all() and not pool.k.float()[:, [0, 1, 3, 4]].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_large_zeros_take_what_is_touched(dtype: torch.dtype) -> None:
    """The oracle of what was touched is a list of the pages that were written."""
    taken = untouched_bytes()
    zeros = lazy_zeros((4, 8 << 20), dtype, torch.device("cpu"), planes=4)
    raw = zeros.view(torch.uint8)
    assert zeros.dtype == dtype and zeros.shape == (4, 8 << 20) and zeros.is_contiguous()
    assert touched_of(zeros) == 0 and untouched_bytes() - taken == zeros.nbytes
    pages = set()
    for plane, column in itertools.product(range(4), (0, 1, 4096, 9000)):
        raw[plane, column] = 1
        pages.add((raw.data_ptr() + plane * raw.stride(0) + column) // mmap.PAGESIZE)
    assert touched_of(zeros) == len(pages) * mmap.PAGESIZE
    assert untouched_bytes() - taken == zeros.nbytes - touched_of(zeros)
    assert raw.count_nonzero() == 16 and touched_of(zeros) <= zeros.nbytes
    raw.fill_(1)
    assert touched_of(zeros) == zeros.nbytes
    del zeros, raw
    assert untouched_bytes() == taken


def test_small_zeros_are_torchs() -> None:
    taken = untouched_bytes()
    zeros = lazy_zeros((2, 100), torch.int32, torch.device("cpu"), planes=2)
    assert zeros.shape == (2, 100) and not zeros.any() and untouched_bytes() == taken


def test_few_tokens_touch_few_pages() -> None:
    """A token of a large pool takes a page of each layer's keys and values, and the padding slot reads as zeros."""
    pool = KVPool(4, 50_000, 2, 64, torch.bfloat16)
    assert pool.touched == 0 and pool.bytes > 90 << 20
    for stored in pool.stored:
        stored[:, 1:17] = 1
    assert pool.touched <= 2 * 4 * 3 * mmap.PAGESIZE and not pool.k[:, PAD_SLOT].any()
    pool.fill_nan([3])
    assert pool.k[:, 3].isnan().all() and not pool.k[:, PAD_SLOT].isnan().any()
    pool.release()
    assert pool.touched == 0
    pool.restore()
    assert pool.touched == 0 and not pool.v[:, 1:17].any()


def test_a_forked_process_has_its_own_copy() -> None:
    zeros = lazy_zeros((1, 4 << 20), torch.uint8, torch.device("cpu"))
    zeros[0, :10] = 7
    if not (child := os.fork()):
        zeros[0, :10] += 1
        os._exit(int(zeros[0, :10].sum()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 80 and int(zeros[0, :10].sum()) == 70


@pytest.mark.parametrize("process", [False, True])
def test_info_tells_what_was_touched(tiny: Path, process: bool) -> None:
    with Engine(tiny, dtype="float32", threads=1, kv_tokens=400_000, process=process) as engine:
        before = engine.info()["memory"]
        engine.generate("lazy dog", max_tokens=4)
        after = engine.info()["memory"]
        assert before["touched"] < after["touched"] < before["kv"] // 10
        engine.sleep()
        assert engine.info()["memory"] == after | {"touched": 0}
    assert engine.info()["memory"]["touched"] == 0


def test_every_weight_is_found(tiny):
    model = load_model(tiny)
    found = {id(tensor) for tensor in tensors_of(model)}
    for layer in model.layers:
        for holder, name in layer.products():
            assert id(getattr(holder, name).weight) in found
        assert id(layer.before_mixer.weight) in found
    assert id(model.embedding.table) in found and id(model.head.product.weight) in found


def test_host_copies_bring_shared_memory_back_once(monkeypatch):
    monkeypatch.setattr("sgl.runtime.loading.tensor_files.tensor_transfer.CHUNK", 64)
    whole, other = torch.arange(1000.0), torch.arange(7, dtype=torch.int32)
    views = [whole, whole[10:20], whole.view(10, 100).t(), other]
    before = [view.clone() for view in views]
    copy = OffloadedWeights(views)
    assert copy.bytes == 4000 + 28 and whole.untyped_storage().nbytes() == 0
    copy.restore()
    assert all(torch.equal(view, old) for view, old in zip(views, before, strict=True))


# sleep and wake


def wait_for(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    assert condition()


def test_the_same_text_after_a_sleep(open_engine):
    engine: Engine = open_engine()
    expected = [done.text for done in engine.generate(PROMPTS, GREEDY)]
    pool_bytes = engine.info()["kv_bytes"]
    assert engine.sleep() == pool_bytes and engine.asleep
    assert engine.sleep() == 0
    assert engine._core.sleeper._pool.bytes == 0
    assert engine.stats().pages_free == engine.stats().pages_total
    engine.wake()
    engine.wake()
    assert not engine.asleep
    assert [done.text for done in engine.generate(PROMPTS, GREEDY)] == expected


def test_what_experts_counted_is_told_while_the_counts_are_not_on_the_device(open_engine, tmp_path, monkeypatch):
    engine = open_engine(model=write_tokenizer(write_family("qwen3 moe", tmp_path, num_hidden_layers=2)))
    engine.generate(PROMPTS[0], GREEDY)
    before, counts = engine.stats().expert_counts, [layer.ffn.counts for layer in engine._core.runner.model.layers]
    monkeypatch.setattr(engine_sleep, "tensors_of", lambda roots: [SimpleNamespace(device=CUDA)])
    monkeypatch.setattr(engine_sleep, "_check_room", lambda tensors: None)
    monkeypatch.setattr(engine_sleep, "OffloadedWeights", lambda tensors: OffloadedWeights(counts))
    engine.sleep()
    with pytest.raises(RuntimeError, match="unallocated"):
        engine._core.runner.model.expert_counts()
    assert sum(before[0]) > 0 and engine.stats().expert_counts == engine.glance().expert_counts == before
    engine.wake()
    assert engine.stats().expert_counts == before and engine._core.sleeper.experts is None


def test_what_is_asked_for_asleep_waits(open_engine):
    engine = open_engine()
    expected = engine.generate(PROMPTS[0], GREEDY).token_ids
    engine.sleep()
    sequence = engine.open()
    sequence.extend(engine.tokenizer.encode(PROMPTS[0], special_prefix=True))
    future = sequence.generate(GREEDY)
    wait_for(lambda: engine.stats().waiting == 1)
    steps = engine.stats().steps
    time.sleep(0.05)
    assert engine.stats().steps == steps and not future.done()
    engine.wake()
    assert future.result(30).token_ids == expected


def test_a_sleep_in_the_middle_changes_no_text(open_engine):
    engine = open_engine(step_tokens=16)
    params = dataclasses.replace(GREEDY, max_tokens=300)
    expected = [done.token_ids for done in engine.generate(PROMPTS, params)]
    idle = engine.open()
    idle.extend(engine.tokenizer.encode(PROMPTS[1], special_prefix=True))
    idle.prefill().result(30)
    engine.flush_cache()
    futures = []
    for text in PROMPTS:
        sequence = engine.open()
        sequence.extend(engine.tokenizer.encode(text, special_prefix=True))
        futures.append(sequence.generate(params))
    wait_for(lambda: engine.stats().running == 3)
    engine.sleep()
    assert engine.stats().running == 0 and not all(future.done() for future in futures)
    engine.check()
    engine.wake()
    assert [future.result(60).token_ids for future in futures] == expected
    assert idle.generate(params).result(60).token_ids == expected[1]


def test_closing_asleep_fails_what_waits(open_engine):
    engine = open_engine()
    engine.sleep()
    sequence = engine.open()
    sequence.extend([5, 6])
    future = sequence.generate(GREEDY)
    wait_for(lambda: engine.stats().waiting == 1)
    engine.close()
    with pytest.raises(EngineClosed):
        future.result(5)
    with pytest.raises(EngineClosed):
        engine.wake()


@pytest.mark.parametrize("asleep", [False, True])
def test_a_closed_engine_keeps_no_memory(open_engine, asleep):
    engine = open_engine()
    sequence = engine.open()
    sequence.extend([5, 6])
    sequence.generate(GREEDY).result(30)
    model, pool = weakref.ref(engine._core.runner.model), weakref.ref(engine._core.sleeper._pool)
    if asleep:
        engine.sleep()
    engine.close()
    assert model() is None and pool() is None  # though engine and sequence are still held here
    assert sequence is not None and engine.closed


def test_info_tells_memory_and_startup(open_engine):
    engine = open_engine()
    info = engine.info()
    assert info["memory"]["kv"] == info["kv_bytes"] > 0
    assert info["memory"]["weights"] == info["parameters"] * 4
    assert {"config", "device", "weights", "measure", "kv", "attention", "runner"} <= set(info["startup"])
    assert sum(info["startup"].values()) <= info["startup_seconds"]
    assert info["attention_reason"] and info["graphs"] is False and info["sampler"] in ("compiled", "torch")
    assert info["run_ahead"] is engine.config.run_ahead


@pytest.mark.parametrize("used, files, free", [(3000, 0, 5000), (7000, 2500, 3500), (9000, 0, 0)])
def test_files_that_may_be_dropped_are_free_memory(
    used: int, files: int, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sgl.runtime.memory import memory_sizes

    (tmp_path / "memory.max").write_text("8000\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {files}\nactive_file 9\n")
    monkeypatch.setattr(memory_sizes, "GROUPS", ((f"{tmp_path}/", "memory.max", "memory.current", "inactive_file"),))
    monkeypatch.setattr(memory_sizes, "untouched_bytes", lambda: 0)
    assert memory_sizes.free_memory() == free
    monkeypatch.setattr(memory_sizes, "untouched_bytes", lambda: 1000)
    assert memory_sizes.free_memory() == max(0, free - 1000)

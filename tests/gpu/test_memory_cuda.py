"""Memory on a CUDA device: streamed weights, a pool of the asked size, sleep and wake, everything given back."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch
from alone import alone

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import ConfigError
from sgl.runtime.executor.cuda_graphs import CudaGraphPool
from sgl.runtime.executor.weight_offload import tensors_of
from sgl.runtime.loading import dummy_model, load_config, load_model, load_weights
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.loading.load_plan import plan_for
from sgl.runtime.loading.tensor_files import tensor_transfer
from sgl.runtime.models.decoder import Decoder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

GREEDY = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
PROMPTS = ["The quick brown fox", "1 + 1 =", "lazy dog"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), tokenizer=True)


def allocated() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def segments() -> list[tuple[int, str, list[int]]]:
    """What the allocator holds of the device: size, kind and the blocks in use, of each larger piece."""
    found = torch.cuda.memory_snapshot()
    return [
        (
            piece["total_size"],
            piece["segment_type"],
            [block["size"] for block in piece["blocks"] if block["state"].startswith("active")],
        )
        for piece in found
        if piece["total_size"] > 2**21
    ]


def open_engine(tiny: Path, **options: object) -> Engine:
    return Engine(tiny, **{"device": "cuda", "dtype": "float32", "kv_memory": "64MB"} | options)


def ids(engine: Engine) -> list[list[int]]:
    return [done.token_ids for done in engine.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize("chunk", [1024, 8000, 2**24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_streamed_weights_are_those_of_the_file(tmp_path, monkeypatch, chunk, dtype):
    monkeypatch.setattr(tensor_transfer, "CHUNK", chunk)
    path = write_checkpoint(tmp_path, "qwen2", shard_size="100KB")
    slow, fast = filled(path, torch.float32, "cpu"), filled(path, dtype, "cuda")
    assert all(torch.equal(fast[name].cpu(), tensor.to(fast[name].dtype)) for name, tensor in slow.items())


def filled(path: Path, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """The tensors of a directory's model, loaded and not sealed."""
    checkpoint = open_checkpoint(path)
    model = Decoder(checkpoint.model, dtype, device)
    plan = plan_for(model, checkpoint.sources, checkpoint.readers, checkpoint.where)
    with load_weights.weights_of(plan, model.device) as weights:
        assert list(model.loaded_parts(weights, ahead=True)) == list(range(len(model.parts)))
    return {place.name: place.target for place in model.places()}


def test_dummy_weights_are_seeded_on_the_device(tiny):
    config = load_config(tiny)
    one, same, other = (dummy_model(config, torch.bfloat16, "cuda", seed) for seed in (1, 1, 2))
    a, b, c = ({place.name: place.target for place in model.places()} for model in (one, same, other))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["lm_head.weight"], c["lm_head.weight"])
    assert a["lm_head.weight"].float().std().item() == pytest.approx(0.02, rel=0.05)
    assert bool((a["model.norm.weight"] == 1).all())


@alone
def test_the_share_of_the_memory_is_kept(tiny):
    free = torch.cuda.mem_get_info()[0]
    with open_engine(tiny, kv_memory=None, memory=0.03) as engine:
        told = engine.info()["memory"]
        assert told["weights"] > 0 and told["activations"] > 0 and told["reserved"] > 0
        assert told["weights"] + told["activations"] + told["reserved"] + told["kv"] <= 0.0301 * free
        ids(engine)
    with pytest.raises(ConfigError, match=r"weights .* KV .* others .*raise memory, now 1e-06"):
        open_engine(tiny, kv_memory=None, memory=1e-6)
    with pytest.raises(ConfigError, match="has no room"):
        open_engine(tiny, kv_memory="9000GB")


@alone
def test_a_capture_that_fails_leaves_the_allocator_as_it_was():
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.ones(1000, device="cuda")
        pool = CudaGraphPool()
        for _ in range(2):
            with pytest.raises(RuntimeError):
                pool.capture(lambda: x.sum().item())  # waits for the device, which no graph may
        pool.graph_for(lambda: x.add_(1))()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    del (held := [torch.empty(2**27, dtype=torch.uint8, device="cuda")])[:]
    assert not held and torch.cuda.memory_reserved() >= before + 2**27
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before


@alone
def test_close_gives_everything_back(tiny):
    with open_engine(tiny) as warm:  # libraries allocate once
        expected = ids(warm)
    before = allocated()
    for _ in range(2):
        engine = open_engine(tiny)
        assert ids(engine) == expected
        assert allocated() > before + 60_000_000
        engine.close()
        assert allocated() <= before + 2**20
    engine = open_engine(tiny)
    del engine  # the last reference does the same
    assert allocated() <= before + 2**20


def test_two_engines_beside_each_other(tiny):
    with open_engine(tiny) as first, open_engine(tiny, kv_memory=None, memory=0.1) as second:
        assert ids(first) == ids(second)
        first.close()
        assert ids(second) == ids(second)


@alone
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sleep_frees_and_wake_restores(tiny, graphs, dtype):
    with open_engine(tiny, graphs=graphs, dtype=dtype) as engine:
        expected = ids(engine)
        engine.flush_cache()
        lone = engine.generate(PROMPTS[0], GREEDY).token_ids  # by the kernels for one row, which round otherwise
        held = allocated()
        freed = engine.sleep()
        assert freed > 60_000_000 and allocated() < held - 60_000_000, (freed, held, allocated(), segments())
        model = engine._core.runner.model
        assert all(t.untyped_storage().nbytes() == 0 for t in tensors_of(model) if t.is_cuda)
        sequence = engine.open()
        sequence.extend(engine.tokenizer.encode(PROMPTS[0], special_prefix=True))
        waiting = sequence.generate(GREEDY)
        engine.wake()
        assert waiting.result(60).token_ids == lone
        engine.flush_cache()
        assert ids(engine) == expected
        assert abs(allocated() - held) < 8 * 2**20
        if graphs:
            assert any(engine._core.runner._graphs._captured.values()) and all(
                engine._core.runner._graphs._captured.values()
            )


def test_sleep_in_the_middle(tiny):
    long = SamplingParams(max_tokens=300, temperature=0, ignore_eos=True)
    with open_engine(tiny) as engine:
        expected = [done.token_ids for done in engine.generate(PROMPTS, long)]
        futures = []
        for text in PROMPTS:
            sequence = engine.open()
            sequence.extend(engine.tokenizer.encode(text, special_prefix=True))
            futures.append(sequence.generate(long))
        engine.sleep()
        engine.wake()
        assert [future.result(60).token_ids for future in futures] == expected
        engine.check()


def test_loading_again_equals_the_cpu(tiny):
    cpu, gpu = load_model(tiny), load_model(tiny, torch.float32, "cuda")
    assert torch.equal(cpu.embedding.table, gpu.embedding.table.cpu())

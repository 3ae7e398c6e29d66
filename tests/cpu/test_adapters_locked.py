"""What loads adapters fast: pairs as they are stored, memory that had other
contents before, and copies that still read it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint
from plain_adapters import write_adapter
from safetensors.torch import load_file, save_file

from sgl.runtime.adapters.adapter import Adapter, AdapterPacker
from sgl.runtime.adapters.adapter_sites import AdapterSite, sites_of
from sgl.runtime.adapters.adapter_slots import AdapterSlots
from sgl.runtime.adapters.adapter_store import AdapterHostStore
from sgl.runtime.adapters.files.adapter_reader import AdapterReader, are_held
from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading.model_files.model_directory import load_config
from sgl.runtime.memory.pinned_memory_pool import PinnedMemoryDriver, PinnedMemoryPool

TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    path = tmp_path_factory.mktemp("adapters")
    base = write_checkpoint(path / "base")
    return base, write_adapter(base, path / "one", 1, 8)


@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("dtype", TYPES[1:])
def test_what_a_type_holds_is_what_each_number_says(stored: torch.dtype, dtype: torch.dtype) -> None:
    chance = random.Random(f"{stored} {dtype}")
    edges = [
        0.0,
        -0.0,
        1e-7,
        -2.0,
        65519.0,
        -65519.0,
        65520.0,
        -65520.0,
        7e4,
        3.38e38,
        3.3961e38,
        -3.4e38,
        1e300,
        float("inf"),
        -float("inf"),
        float("nan"),
        -float("nan"),
    ]
    seen = set()
    for _ in range(300):
        numbers = torch.tensor(
            [chance.choice(edges[: chance.choice((5, 11, 17))]) for _ in range(chance.randrange(6))],
            dtype=torch.float64,
        ).to(stored)
        expected = bool(numbers.float().to(dtype).isfinite().all())
        assert are_held(numbers, dtype) is expected, numbers
        seen.add(expected)
    assert seen == {True, False}


def all_pairs(sites: tuple[AdapterSite, ...], chance: random.Random) -> dict[str, Any]:
    """Of some modules, of ranks that differ."""
    found = {}
    for site in sites:
        for module, size in zip(site.modules, site.sizes, strict=True):
            if chance.random() < 0.7:
                rank = chance.choice((3, 8, 8, 11, 16))
                found[module] = torch.randn(rank, site.inputs), torch.randn(size, rank), chance.random()
    return found


def test_memory_that_held_something_else_packs_to_the_same(made: tuple[Path, Path]) -> None:
    model = load_config(made[0])
    sites = sites_of(model)
    for seed in range(20):
        pairs = all_pairs(sites, random.Random(seed))
        clean = AdapterPacker(sites, torch.bfloat16, memory=lambda size: torch.zeros(size, dtype=torch.uint8)).pack(
            pairs
        )
        dirty = AdapterPacker(
            sites, torch.bfloat16, memory=lambda size: torch.full((size,), 255, dtype=torch.uint8)
        ).pack(pairs)
        assert torch.equal(clean.memory, dirty.memory) and clean.digest == dirty.digest


@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("dtype", TYPES[1:])
def test_pairs_in_the_files_type_come_to_what_float32_comes_to(
    made: tuple[Path, Path], tmp_path: Path, stored: torch.dtype, dtype: torch.dtype
) -> None:
    base, folder = made
    model, tensors = load_config(base), load_file(folder / "adapter_model.safetensors")
    digests = []
    for name, of in (("stored", lambda each: each.to(stored)), ("single", lambda each: each.to(stored).float())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_bytes((folder / "adapter_config.json").read_bytes())
        save_file(
            {key: of(each.double() * 1.2345678912345).contiguous() for key, each in tensors.items()},
            tmp_path / name / "adapter_model.safetensors",
        )
        digests.append(AdapterReader(model, sites_of(model), dtype).read(tmp_path / name).digest)
    assert digests[0] == digests[1]


def test_the_tensor_that_is_no_number_is_named_and_a_short_file_refused(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    base, folder = made
    model, tensors = load_config(base), load_file(folder / "adapter_model.safetensors")
    reader, spoilt = AdapterReader(model, sites_of(model), torch.bfloat16), sorted(tensors)[3]
    (tmp_path / "adapter_config.json").write_bytes((folder / "adapter_config.json").read_bytes())
    tensors[spoilt] = tensors[spoilt].clone()
    tensors[spoilt].view(-1)[5] = float("nan")
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=f"{spoilt}.*holds nan"):
        reader.read(tmp_path)
    data = (folder / "adapter_model.safetensors").read_bytes()
    (tmp_path / "adapter_model.safetensors").write_bytes(data[:-10])
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        reader.read(tmp_path)


class Event:
    done = False

    def query(self) -> bool:
        return self.done


class Stream:
    """Of copies; none is over before it is said."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def record_event(self) -> Event:
        self.events.append(Event())
        return self.events[-1]


class SlowSlots(AdapterSlots):
    def _copying(self) -> Any:
        return nullcontext()

    def _is_ready(self, slot: Any, waits: bool) -> bool:
        """As on a GPU: the device waits for the event, nobody here."""
        slot.copied = None
        return True


@pytest.fixture
def pool() -> Iterator[PinnedMemoryPool]:
    found = PinnedMemoryPool(PinnedMemoryDriver(lambda piece: None, lambda piece: None), 1 << 30)
    yield found
    found.close()


def test_memory_is_not_given_out_again_while_a_copy_reads_it(made: tuple[Path, Path], pool: PinnedMemoryPool) -> None:
    base, folder = made
    model = load_config(base)
    sites = sites_of(model)
    store = AdapterHostStore(
        AdapterReader(
            model, sites, torch.bfloat16, packing=AdapterPacker(sites, torch.bfloat16, model, pool.take)
        ).read,
        1 << 30,
    )
    slots = SlowSlots(sites, torch.bfloat16, CPU, {8: 2}, False)
    slots._stream = stream = Stream()  # type: ignore[assignment]
    adapter: Adapter | None = store.fresh(folder)
    assert adapter is not None
    digest, size, address = adapter.digest, adapter.memory.nbytes, adapter.memory.data_ptr()
    assert slots.take(digest, adapter, False)
    other = replace(adapter, digest="other", memory=adapter.memory.clone())
    adapter = None  # let go by the store, while the GPU reads it
    early = pool.take(size)
    assert early.data_ptr() != address
    del early
    assert slots.take("other", other, False)
    assert address not in {pool.take(size).data_ptr() for _ in range(2)}
    for event in stream.events:
        event.done = True
    assert slots.take("other", None, False)
    held = [pool.take(size) for _ in range(2)]
    assert address in {each.data_ptr() for each in held}

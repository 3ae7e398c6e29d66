"""Sets up the adapters of an engine, where its model takes any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..adapters.adapted_model import AdaptedModel
from ..adapters.adapter import AdapterPacker, Memory
from ..adapters.adapter_manager import AdapterManager
from ..adapters.adapter_sites import AdapterSite, sites_of
from ..adapters.adapter_slots import AdapterSlots, bytes_of, class_of
from ..adapters.adapter_store import AdapterHostStore
from ..adapters.choose_adapter_kernels import adapted_sites, adapter_products_for, by_reference, reads_extras
from ..executor.device_choice import DeviceChoice
from ..loading.gguf_files.gguf_model import is_gguf
from ..loop.engine_core import EngineCore
from ..memory.memory_sizes import parse_memory
from ..memory.pinned_memory_pool import PinnedMemoryPool, pin_driver_of
from ..models.decoder import Decoder
from ..models.transformers_backend import AnyDecoder
from .engine_config import DeviceDefaults

if TYPE_CHECKING:
    from ..adapters.files.adapter_reader import AdapterReader
    from .build_ranks import RanksBuilder


def adapters_refusal(model: AnyDecoder, path: Path, config: DeviceDefaults) -> str | None:
    """Why the model takes no adapters, if it takes none."""
    if not isinstance(model, Decoder):
        return f"{model.config.architecture} runs by transformers' own implementation"
    if config.by_rows:
        return "no adapters are added to rows that ranks share out: open it with latent_attention='heads'"
    return (
        None
        if adapted_sites(model, config.deterministic, path)
        else f"{model.config.architecture} has no product that adapters are added to"
    )


def slot_bytes(
    model: Decoder, config: DeviceDefaults, side: RanksBuilder | None = None, path: Path | None = None
) -> int:
    """Bytes that the requested slots take: of all ranks that share this memory, on GPUs of the fullest GPU.

    path: of the model.
    """
    if not config.adapter_slots:
        return 0
    if side is None:
        return bytes_of(adapted_sites(model, config.deterministic, path), counts(config), model.dtype.itemsize) + (
            adapter_budget(model, config) or 0
        )
    if model.device.type == "cuda":
        from ..parallel.tp.sharded_adapters import most_adapter_bytes_of_rank

        most = most_adapter_bytes_of_rank(
            side.part.whole,
            config.pipeline_parallel,
            config.tensor_parallel,
            counts(config),
            model.dtype.itemsize,
            by_reference(model, config.deterministic, path),
        )
        return most + config.extras_room
    return _of_ranks(side, config, model, path)(counts(config))


def adapter_budget(model: Decoder, config: DeviceDefaults) -> int | None:
    """Bytes of a GPU for what adapters have other than pairs; None: they are stored in main memory."""
    return config.extras_room if model.fused else None


def _of_ranks(
    side: RanksBuilder, config: DeviceDefaults, model: Decoder, path: Path | None
) -> Callable[[Mapping[int, int]], int]:
    from ..parallel.tp.sharded_adapters import adapter_bytes_of_ranks

    stages, ranks, law = (
        config.pipeline_parallel,
        config.tensor_parallel,
        by_reference(model, config.deterministic, path),
    )
    room = stages * ranks * (adapter_budget(model, config) or 0)
    return lambda counts: (
        adapter_bytes_of_ranks(side.part.whole, stages, ranks, counts, model.dtype.itemsize, law) + room
    )


def counts(config: DeviceDefaults) -> dict[int, int]:
    found: dict[int, int] = {}
    for rank, count in config.slots_by_rank.items():
        found[class_of(rank)] = found.get(class_of(rank), 0) + count
    return found


def make_adapters(
    model: Decoder,
    config: DeviceDefaults,
    choice: DeviceChoice,
    side: RanksBuilder | None = None,
    path: Path | None = None,
) -> AdapterManager:
    """path: of the model."""
    gpu = choice.device.type == "cuda"
    sites = adapted_sites(model, config.deterministic, path)
    slots = _slots_maker(side, config, model, path)(
        sites,
        model.dtype,
        choice.device,
        counts(config),
        grows=not gpu and config.adapter_slots is None,
        room=adapter_budget(model, config),
    )
    adapted_model = AdaptedModel(model, sites, adapter_products_for(model, slots, sites, config.deterministic))
    budget = parse_memory(config.adapter_memory, "adapter_memory")
    locked = PinnedMemoryPool(pin_driver_of(choice.device, "adapter_memory"), budget // 8) if gpu else None
    reader = cache(partial(_reader, model, sites, config, side, path, None if locked is None else locked.take))
    store = AdapterHostStore(lambda folder: reader().read(folder), budget, locked)
    made = AdapterManager(store, slots, adapted_model, config.strict)
    model.adapted = adapted_model
    for name, folder in (config.adapters or {}).items():
        made.load(name, str(Path(folder).absolute()))
    return made


def _slots_maker(
    side: RanksBuilder | None, config: DeviceDefaults, model: Decoder, path: Path | None
) -> Callable[..., AdapterSlots]:
    if side is None:
        return AdapterSlots
    from ..parallel.tp.sharded_adapters import RanksAdapterSlots

    return partial(RanksAdapterSlots, side.team, _of_ranks(side, config, model, path), model.fused)


def _reader(
    model: Decoder,
    sites: tuple[AdapterSite, ...],
    config: DeviceDefaults,
    side: RanksBuilder | None,
    path: Path | None,
    memory: Memory | None,
) -> AdapterReader:
    """Made for the first adapter: most programs have none."""
    from ..adapters.files.adapter_base_weights import LocalBaseWeights
    from ..adapters.files.adapter_reader import AdapterReader

    pickles, here = config.load_format == "pt", LocalBaseWeights(model, sites)
    file = path if path is not None and is_gguf(path) else None
    more = reads_extras(model, config.deterministic, path, None if side is None else side.part.whole)
    if side is None:
        return AdapterReader(
            model.config,
            sites,
            model.dtype,
            pickles,
            base=here if more else None,
            packing=AdapterPacker(sites, model.dtype, model.config, memory),
            file=file,
        )
    from ..parallel.tp.sharded_adapters import RanksBaseWeights, ShardedAdapterPacker, parts_of

    whole, law, shape = (
        side.part.whole,
        by_reference(model, config.deterministic, path),
        (config.pipeline_parallel, config.tensor_parallel),
    )
    all_sites = sites_of(whole, law)
    weights = RanksBaseWeights(here, side.team, parts_of(whole, *shape, config.whole_experts), all_sites)
    return AdapterReader(
        whole,
        all_sites,
        model.dtype,
        pickles,
        base=weights if more else None,
        file=file,
        packing=ShardedAdapterPacker(whole, *shape, model.dtype, law, config.whole_experts, memory),
    )


def describe_adapters(core: EngineCore) -> dict[str, Any]:
    """What computes steps that have adapters, for `Engine.info`.

    executor: "" where the engine takes none, with the reason in `why`.
    one_row: the kernels for a batch of one add what adapters do, in layers whose products all have such kernels.
    outside: by name, what adapters change whose steps run outside of the compiled step, of those that the engine began
    with; `adapters.list()` reports all.
    """
    if isinstance(core.adapters, str):
        return {"executor": "", "why": core.adapters, "slots": 0, "slot_bytes": 0, "one_row": False, "outside": {}}
    slots, adapted_model = core.adapters.slots, core.adapters.adapted_model
    outside = {info.name: info.outside for info in core.adapters.list() if info.outside}
    return {
        "executor": adapted_model.products.name,
        "why": adapted_model.products.why,
        "slots": len(slots.slots),
        "slot_bytes": slots.bytes,
        "one_row": adapted_model.products.has_gemv,
        "outside": outside,
    }

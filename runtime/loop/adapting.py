"""Sets up the adapters of an engine, where its model takes any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..adapters.compiled import CompiledLaw
from ..adapters.product import Law
from ..adapters.reading import Reader
from ..adapters.room import Adapters
from ..adapters.shadow import Shadow
from ..adapters.sites import Site, sites_of
from ..adapters.slots import Slots, bytes_of, class_of
from ..adapters.store import HostStore
from ..executor.device import DeviceChoice
from ..layers import cpu
from ..loading.gguf import is_gguf
from ..models.decoder import Decoder
from .config import Resolved, parse_memory
from .core import EngineCore


def refusal(model: Any, path: Path) -> str | None:
    """Why the model takes no adapters, if it takes none."""
    if not isinstance(model, Decoder):
        return f"{model.config.architecture} runs by transformers' own implementation"
    if is_gguf(path):
        return "the model is a GGUF file, whose rows may lie in another order than the adapters were trained for; take the checkpoint in Hugging Face's format"
    if model.config.is_share:
        return "with tensor_parallel or pipeline_parallel the ranks take no adapters"
    return None if sites_of(model.config) else f"{model.config.architecture} has no product that adapters are added to"


def slot_bytes(model: Decoder, config: Resolved) -> int:
    """That the slots take which were asked for."""
    return bytes_of(sites_of(model.config), counts(config), model.dtype.itemsize) if config.adapter_slots else 0


def counts(config: Resolved) -> dict[int, int]:
    found: dict[int, int] = {}
    for rank, count in config.slots_by_rank.items():
        found[class_of(rank)] = found.get(class_of(rank), 0) + count
    return found


def law_for(model: Decoder, slots: Slots, sites: tuple[Site, ...], config: Resolved) -> Law:
    """What adds the adapters' part to the products."""
    if model.fused:
        from ..adapters.fused import FusedLaw  # needs Triton

        return FusedLaw(slots, sites)
    if cpu.can_compute(model.dtype, model.device):
        return CompiledLaw(slots, sites)
    return Law(slots, by_row=config.deterministic)


def make_adapters(model: Decoder, config: Resolved, choice: DeviceChoice) -> Adapters:
    sites: tuple[Site, ...] = sites_of(model.config)
    gpu = choice.device.type == "cuda"
    slots = Slots(sites, model.dtype, choice.device, counts(config), grows=not gpu and config.adapter_slots is None)
    shadow = Shadow(model, sites, law_for(model, slots, sites, config))
    reader = Reader(model.config, sites, model.dtype, pickles=config.load_format == "pt")
    made = Adapters(HostStore(reader.read, parse_memory(config.adapter_memory, "adapter_memory"), pages_locked=gpu), slots, shadow)
    model.adapted = shadow
    for name, path in (config.adapters or {}).items():
        made.load(name, str(Path(path).absolute()))
    return made


def adapters_told(core: EngineCore) -> dict[str, Any]:
    """Who computes steps that have adapters, for `Engine.info`. executor: "" where the engine takes none, with the reason in `why`."""
    if isinstance(core.adapters, str):
        return {"executor": "", "why": core.adapters, "slots": 0, "slot_bytes": 0}
    slots, shadow = core.adapters.slots, core.adapters.shadow
    return {"executor": shadow.law.name, "why": shadow.law.why, "slots": len(slots.slots), "slot_bytes": slots.bytes}

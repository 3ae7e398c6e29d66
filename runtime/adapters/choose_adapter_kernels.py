"""The choice of which products adapters are added to, and by whom; alike on all ranks."""

from __future__ import annotations

from pathlib import Path

from ..layers import cpu
from ..loading.gguf import is_gguf
from ..models.decoder import Decoder
from ..models.experts import ExpertsPart
from ..models.spec import Attention, Gated, Model, Plain
from .compiled import CompiledLaw
from .product import Law
from .sites import Site, sites_of
from .slots import Slots


def adapted_sites(model: Decoder, deterministic: bool, path: Path | None = None) -> tuple[Site, ...]:
    """path: of the model."""
    return sites_of(model.config, by_law(model, deterministic, path))


def by_law(model: Decoder, deterministic: bool, path: Path | None = None) -> bool:
    """Whether mixers other than attention are adapted, to which on a CPU only the law adds: rows beside them may have other last bits."""
    return not deterministic and reads_more(model, deterministic, path)


def reads_more(model: Decoder, deterministic: bool, path: Path | None = None, whole: Model | None = None) -> bool:
    """Whether more than pairs of the layers is read: not beside a GGUF file, whose rows lie in an order of their own. Where bits are not to depend on the batch, the law must have those of the compiled step: of attention
    and feedforward networks. whole: of all ranks, where there are several."""
    if path is not None and is_gguf(path):
        return False
    if model.fused or model.device.type != "cpu":
        return model.fused and not deterministic
    layers = (whole or model.config).layers
    return not deterministic or all(isinstance(layer.mixer, Attention) and isinstance(layer.ffn, Gated | Plain) for layer in layers)


def law_for(model: Decoder, slots: Slots, sites: tuple[Site, ...], deterministic: bool) -> Law:
    """deterministic: a row's bits must not depend on the others."""
    if model.fused:
        from .fused import FusedLaw  # needs Triton

        return FusedLaw(slots, sites, by_row=deterministic)
    if cpu.can_compute(model.dtype, model.device):
        return CompiledLaw(slots, sites, len(model.layers), by_row=deterministic)
    return Law(slots, by_row=deterministic)


def mixtures_refusal(model: Decoder) -> str:
    """Why adapters of its mixtures of experts are not read; empty: they are."""
    brought = any(isinstance(block.ffn, ExpertsPart) and block.ffn.host is not None for block in model.layers)
    return "with expert_memory experts are brought from main memory" if brought else ""

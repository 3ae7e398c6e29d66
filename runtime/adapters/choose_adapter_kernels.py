"""The choice of which products adapters are added to, and by whom; alike on all ranks."""

from __future__ import annotations

from pathlib import Path

from ..layers import cpu_kernels
from ..loading.gguf_files.gguf_model import is_gguf
from ..models.decoder import Decoder
from ..models.reference.reference_experts import ReferenceExperts
from ..models.spec.model_spec import AttentionSpec, GatedFFNSpec, ModelSpec, PlainFFNSpec
from .adapter_sites import AdapterSite, sites_of
from .adapter_slots import AdapterSlots
from .cpu_adapter_products import CpuAdapterProducts
from .lora_linear import ReferenceAdapters


def adapted_sites(model: Decoder, deterministic: bool, path: Path | None = None) -> tuple[AdapterSite, ...]:
    """path: of the model."""
    return sites_of(model.config, by_reference(model, deterministic, path))


def by_reference(model: Decoder, deterministic: bool, path: Path | None = None) -> bool:
    """Whether mixers other than attention are adapted. On a CPU only the reference adds to them: other rows of the
    batch may have other last bits.
    """
    return not deterministic and reads_extras(model, deterministic, path)


def reads_extras(model: Decoder, deterministic: bool, path: Path | None = None, whole: ModelSpec | None = None) -> bool:
    """Whether more than pairs of the layers is read: not for a GGUF file, whose rows have another order.

    Where bits may not depend on the batch, the reference must have those of the compiled step, as it has for attention
    and feedforward networks. whole: of all ranks, where there are several.
    """
    if path is not None and is_gguf(path):
        return False
    if model.fused or model.device.type != "cpu":
        return model.fused and not deterministic
    layers = (whole or model.config).layers
    return not deterministic or all(
        isinstance(layer.mixer, AttentionSpec) and isinstance(layer.ffn, GatedFFNSpec | PlainFFNSpec)
        for layer in layers
    )


def adapter_products_for(
    model: Decoder, slots: AdapterSlots, sites: tuple[AdapterSite, ...], deterministic: bool
) -> ReferenceAdapters:
    """deterministic: a row's bits must not depend on the others."""
    if model.fused:
        from .gpu_adapter_products import GpuAdapterProducts  # needs Triton

        return GpuAdapterProducts(slots, sites, by_row=deterministic)
    if cpu_kernels.can_compute(model.dtype, model.device):
        return CpuAdapterProducts(slots, sites, len(model.layers), by_row=deterministic)
    return ReferenceAdapters(slots, by_row=deterministic)


def mixtures_refusal(model: Decoder) -> str:
    """Why adapters of its mixtures of experts are not read; empty: they are."""
    brought = any(isinstance(block.ffn, ReferenceExperts) and block.ffn.host is not None for block in model.layers)
    return "with expert_memory experts are brought from main memory" if brought else ""

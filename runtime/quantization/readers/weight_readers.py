"""Which reader takes a module's weight.

The headers decide; the configuration gives parameters, its ignore lists are not asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from .compressed_tensors_schemes import schemes
from .kv_scale_reader import other_kind
from .quantization_config import CheckpointQuantization
from .quantization_methods import checkpoint_quantization_of, notes_of
from .quark_config import METHOD as QUARK
from .weight_reader_match import FLOATS, QuantizedModule, TensorHeader, WeightReader

NOTHING: Mapping[str, Any] = MappingProxyType({})
OF_INPUTS = "pre_quant_scale"  # ModelOpt's
BITSANDBYTES = "weight.quant_state.bitsandbytes__"  # and nf4 or fp4
SIGNS = (
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_packed",
    "weight_global_scale",
    "weight_zero_point",
    "qweight",
    "qzeros",
    "W_q",
    "SCB",
    "_weight_qdata",
    "weight.absmax",
    "codebooks",
)


class WeightReaders:
    """The readers of one checkpoint. notes: a line for each thing that is computed otherwise than the checkpoint asks.

    other_kv: why its scales of keys and values are not for float8; None: they may be.
    """

    def __init__(self, quant_config: CheckpointQuantization, metadata: Mapping[str, Any] = NOTHING) -> None:
        """metadata: see `with_metadata`. Raises ConfigError if the configuration requires what no reader supports."""
        self.notes, self.other_kv = tuple(notes_of(quant_config)), other_kind(quant_config)
        self._quantization, self._schemes, self._blocks, self._metadata = (
            quant_config,
            schemes(quant_config),
            quant_config.blocks(),
            metadata,
        )

    @classmethod
    def of(
        cls, quantization: dict[str, Any] | None, where: str, other_files: Mapping[str, dict[str, Any]] | None = None
    ) -> WeightReaders:
        """quantization: config.json's quantization_config or compression_config; other_files: objects of other files by
        name.

        Raises ConfigError for a method that is not read, and for keys whose value changes results and is not
        understood.
        """
        return cls(checkpoint_quantization_of(quantization, where, other_files or {}))

    def with_metadata(self, metadata: Mapping[str, Any]) -> WeightReaders:
        """The same readers with the metadata that files have of their tensors, by the names of weights."""
        return WeightReaders(self._quantization, metadata)

    def claim(self, module: str, siblings: Mapping[str, TensorHeader]) -> WeightReader | None:
        """How the weight of `module` is read; None: it is a plain one.

        siblings: every tensor named module.*, by the rest.
        Raises CheckpointError, naming the tensor, for one that looks quantised and fits no format.
        """
        found = QuantizedModule(module, siblings)
        if found.has(OF_INPUTS):
            from .input_scales import scaled, without

            inner = self.claim(module, without(found, OF_INPUTS).siblings)
            return None if inner is None else scaled(found, OF_INPUTS, inner)
        claim = self._by_names(found) or self._by_dtype(found)
        if claim is None:
            _check_plain(found)
        return claim

    def _by_names(self, module: QuantizedModule) -> WeightReader | None:
        """Formats that have a special name for the codes."""
        if module.dtype("weight_packed") == "I32":
            return _reader("compressed_tensors").claim(module, self._schemes)
        if module.has("weight_packed", "weight_scale"):
            return _reader("float4").claim(module, "weight_packed")
        if module.has("qweight", "qzeros", "scales"):
            return _reader("awq" if _along_outputs(module) else "gptq").claim(module, self._quantization)
        if module.has("blocks", "scales"):
            return _reader("float4").claim_blocks(module)
        if module.has("_weight_qdata"):
            return _reader("torchao").claim(
                module, self._blocks, self._metadata.get(f"{module.name}.weight"), self._quantization.rounds_rows()
            )
        if state := next((name for name in module.siblings if name.startswith(BITSANDBYTES)), None):
            return _reader("bitsandbytes").claim(module, state)
        return _reader("hqq").claim(module) if module.has("W_q") else None

    def _by_dtype(self, module: QuantizedModule) -> WeightReader | None:
        """Formats that call them weight."""
        dtype = module.dtype("weight")
        if dtype == "I32" and module.has("weight_scale") and self._quantization.method == QUARK:
            return _reader("quark").claim(module, self._quantization)
        if dtype == "U32" and module.has("scales"):
            return _reader("mlx").claim(module, self._quantization)
        if dtype == "U8" and module.has("weight_scale"):
            plain = module.dtype("weight_scale") in FLOATS
            return _reader("modelopt").claim(module) if plain else _reader("float4").claim(module, "weight")
        if dtype == "I8" and module.has("SCB"):
            return _reader("int8").claim_bitsandbytes(module)
        if dtype == "I8" and module.has("weight_scale"):
            return _reader("int8").claim(module, self._quantization.rounds_rows(), self._schemes)
        return _reader("float8").claim(module, self._blocks) if dtype.startswith("F8_") else None


def _reader(form: str) -> Any:
    """The module of a format; none is imported before a weight needs it, since all import torch."""
    return import_module(f"{__package__}.{form}_reader")


def _along_outputs(module: QuantizedModule) -> bool:
    """Whether a word of qweight holds codes of eight outputs (AWQ), by its width relative to the scales'."""
    width, out = (module.siblings[name].shape[-1:] for name in ("qweight", "scales"))
    return width != out and not module.has("g_idx")


def _check_plain(module: QuantizedModule) -> None:
    for name in SIGNS:
        if module.has(name):
            raise module.wrong(name, "belongs to no format that is read; take another checkpoint of this model")
    if module.has("weight") and module.dtype("weight") not in ("F64", "F32", "F16", "BF16"):
        raise module.wrong(
            "weight",
            "is not a float, and no supported format stores it like this; take another checkpoint of this model",
        )

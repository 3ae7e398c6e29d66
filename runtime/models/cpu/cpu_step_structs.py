"""The structs Model and Layer of the compiled step (csrc/step/decoder_step_structs.h), laid out by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ...layers import cpu_kernels
from ...layers.linear_layers import BlockedLinear
from ..reference.reference_attention import ReferenceAttention
from ..reference.reference_block import NORMS, ReferenceBlock
from ..reference.reference_experts import ReferenceExperts
from ..reference.reference_feedforward import ReferenceGatedFFN, ReferencePlainFFN
from ..spec.model_spec import GatedFFNSpec
from .cpu_recurrent_structs import RecurrentPart, RecurrentStruct

if TYPE_CHECKING:
    from ..decoder import Decoder

WEIGHT = np.dtype((np.int64, 6))
INPUTS = 5  # of its numbers, how many inputs the weight has
LAYER = np.dtype(
    [
        *(
            (name, "i8")
            for name in (
                "heads",
                "kv_heads",
                "dim",
                "stores",
                "eight",
                "seen",
                "turn",
                "norm_whole",
                "norm_after",
                "gate",
            )
        ),
        *((name, "i8") for name in ("activation", "gated", "inner", "parallel", "of_sum")),
        *((name, "f8") for name in ("scale", "softcap", "clip", "branch", "k_scale", "v_scale")),
        *((name, "i8") for name in ("keys", "values", "sinks", "scalar")),
        *((name, cpu_kernels.NORM) for name in ("query_norm", "key_norm", "value_norm", *NORMS)),
        *((name, WEIGHT) for name in ("qkv", "output", "up", "down")),
        *((name, "i8") for name in ("experts", "recurrent", "mixes", "feeds")),
    ]
)
MODEL = np.dtype(
    [
        *((name, "i8") for name in ("kind", "layers", "hidden", "wide", "mixed", "embedding")),
        ("embed_scale", "f8"),
        ("norm", cpu_kernels.NORM),
        ("head", WEIGHT),
    ]
)


class ModelStruct:
    """Memory of a struct Model with its layers; `layers` is a view of it, to be written into.

    claimed: the layers that are filled; the others stay zero.  space: numbers that a row of a step needs in addition to
        x.
    states: of the layers that keep some.
    """

    def __init__(self, model: Decoder, claimed: list[ReferenceBlock], seen: list[int]) -> None:
        count = len(model.layers)
        self._memory = np.zeros((MODEL.itemsize + count * LAYER.itemsize) // 8, np.int64)
        bytes_ = self._memory.view(np.uint8)
        self.address = self._memory.ctypes.data
        self.layers = bytes_[MODEL.itemsize :].view(LAYER)
        turns = list(model.rotaries)
        self.states = {
            block.index: RecurrentStruct(block.mixer) for block in claimed if isinstance(block.mixer, RecurrentPart)
        }
        for block in claimed:
            fill(self.layers[block.index], block)
            if isinstance(block.mixer, ReferenceAttention):
                rope = block.layer.attention.rope
                self.layers[block.index]["turn"] = -1 if rope is None else turns.index(rope)
            if block.index in self.states:
                self.layers[block.index]["recurrent"] = self.states[block.index].address
        self.layers["seen"] = seen
        wide = max(
            (_product(block, name).outputs for block in claimed for name in _products(block) if name in ("qkv", "up")),
            default=0,
        )
        mixed = max(_mixed(block) for block in claimed)
        _fill_model(bytes_[: MODEL.itemsize].view(MODEL)[0], model, wide, mixed)
        self.space = (
            model.config.hidden_size + wide + mixed + max(_inner(block, model.config.hidden_size) for block in claimed)
        )


def _fill_model(words: Any, model: Decoder, wide: int, mixed: int) -> None:
    words["kind"], words["layers"], words["hidden"] = (
        cpu_kernels.KINDS[model.dtype],
        len(model.layers),
        model.config.hidden_size,
    )
    words["wide"], words["mixed"] = wide, mixed
    words["embedding"], words["embed_scale"] = model.embedding.table.data_ptr(), model.embedding.scale
    if model.head.norm is not None:
        words["norm"] = model.head.norm.words
    if isinstance(model.head.product, BlockedLinear):
        words["head"] = model.head.product.words


def fill(words: Any, block: ReferenceBlock) -> None:
    """The struct Layer of a supported layer, except for what only the whole model or the step knows."""
    layer = block.layer
    words["mixes"], words["feeds"] = block.mixer is not None, block.ffn is not None
    if isinstance(block.mixer, ReferenceAttention):
        _fill_attention(words, block)
    else:
        words["heads"], words["dim"], words["turn"] = 1, _mixed(block), -1
    words["parallel"], words["of_sum"] = layer.norms.parallel, layer.norms.of_sum
    words["branch"], words["scalar"] = layer.branch, _pointer(block.scalar)
    for name in NORMS:
        if (norm := getattr(block, name)) is not None:
            words[name] = norm.words
    for name in _products(block):
        words[name] = _product(block, name).words
    if isinstance(block.ffn, ReferenceExperts):
        assert block.ffn.compiled is not None
        words["experts"] = block.ffn.compiled.address
    elif block.ffn is not None:
        ffn = block.dense.part
        words["activation"], words["inner"], words["gated"] = (
            cpu_kernels.ACTIVATIONS[ffn.activation],
            ffn.inner,
            isinstance(ffn, GatedFFNSpec),
        )


def _fill_attention(words: Any, block: ReferenceBlock) -> None:
    part, mixer = block.layer.attention, block.attention
    words["heads"], words["kv_heads"], words["dim"], words["stores"] = (
        part.heads,
        part.kv_heads,
        part.dim,
        part.source is None,
    )
    words["scale"], words["softcap"], words["clip"] = part.scale, part.softcap or 0, part.clip or 0
    words["sinks"], words["gate"] = _pointer(mixer.sinks), part.gate
    if mixer.norm is not None:
        words["query_norm"], words["key_norm"] = mixer.norm.words()
        words["norm_whole"], words["norm_after"] = mixer.norm.part.over == "all", mixer.norm.after
    if mixer.value_norm is not None:
        words["value_norm"] = mixer.value_norm.words


def _product(block: ReferenceBlock, name: str) -> BlockedLinear:
    holders: dict[str, tuple[object, str]] = {"qkv": (block.mixer, "qkv"), "output": (block.mixer, "output")}
    if isinstance(block.ffn, ReferenceGatedFFN | ReferencePlainFFN):
        holders |= {"up": (block.dense, block.dense.into), "down": (block.dense, "down")}
    found = getattr(*holders[name])
    assert isinstance(found, BlockedLinear)
    return found


def _products(block: ReferenceBlock) -> tuple[str, ...]:
    """Which products of the struct Layer a layer has."""
    heads = ("qkv",) if isinstance(block.mixer, ReferenceAttention) else ()
    output = () if block.mixer is None else ("output",)
    return (*heads, *output, *(("up", "down") if isinstance(block.ffn, ReferenceGatedFFN | ReferencePlainFFN) else ()))


def _mixed(block: ReferenceBlock) -> int:
    """Inputs per row of the mixer's last product."""
    return 0 if block.mixer is None else int(_product(block, "output").words[INPUTS])


def _inner(block: ReferenceBlock, hidden: int) -> int:
    """Width of a row inside the feedforward network; for experts, of their output."""
    if block.ffn is None:
        return 0
    return hidden if isinstance(block.ffn, ReferenceExperts) else block.dense.part.inner


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()

"""What each rank holds of a model: families over two and four ranks compute what one computes, or say why not."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from family_cases import FAMILIES, write_family
from family_checks import close, prompt
from family_cover import covered
from ranks_rig import steps_of_ranks
from rig import Rig, Row
from test_gguf_states import twin

from sgl.runtime.errors import ConfigError
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.loading.tensor_files.safetensors_header import StoredTensor
from sgl.runtime.parallel.tp.sharded_source import ShardedWeightSource, require
from sgl.runtime.parallel.tp.tensor_parallel_split import (
    TensorParallelSplit,
    TensorSlice,
    narrowed_model,
    refusal,
    tensor_slices,
)

SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 321}


def walk(tokens: list[int]) -> list[list[tuple[Row, int]]]:
    one, other = Row(tokens[:20]), Row(tokens[20:33])
    return [[(one, 7), (other, 12)], [(other, 1), (one, 12)], [(one, 1)]]


@pytest.mark.few(26)
@pytest.mark.parametrize("case", covered(FAMILIES, refused=lambda model: refusal(model, 2)))
def test_two_ranks_compute_what_one_computes(case: str, tmp_path: Path) -> None:
    path = write_family(case, tmp_path)
    model = open_checkpoint(path).model
    if (why := refusal(model, 2)) is not None:
        with pytest.raises(ConfigError, match="tensor_parallel=2"):
            require(model, 2)
        assert why.startswith(("layer ", "embeddings of each layer"))
        return
    tokens = prompt(model.vocab_size)
    rig = Rig(path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    for found, asked in zip(steps_of_ranks(path, 2, walk(tokens)), expected, strict=True):
        close(found, asked, 2e-5, case)


def test_most_families_are_shared_out() -> None:
    """The test above is of something."""
    kept = [
        case
        for case, (name, _) in FAMILIES.items()
        if name in ("LlamaForCausalLM", "Qwen2ForCausalLM", "Phi3ForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM")
    ]
    assert kept


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_of_keys_are_held_twice_where_there_are_too_few(kv_heads: int, tmp_path: Path) -> None:
    from family_checks import reference

    reference("LlamaForCausalLM", **SIZES | {"num_key_value_heads": kv_heads}).save_pretrained(tmp_path)
    rig, tokens = Rig(tmp_path, attention="torch_native"), prompt(321)
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    for found, asked in zip(steps_of_ranks(tmp_path, 4, walk(tokens)), expected, strict=True):
        close(found, asked, 2e-5, "four ranks")


RECURRENT: list[tuple[str, int, dict]] = [
    (
        "kimi linear",
        2,
        {"linear_num_heads": 4},
    ),  # KDA, whose decay and gate spread few numbers that are whole on each rank
    (
        "qwen3 next",
        4,
        {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "num_attention_heads": 4},
    ),  # rows lie by heads of keys
    ("qwen 3.5", 4, {"linear_num_key_heads": 4, "linear_num_value_heads": 8}),
    ("mamba 2", 2, {}),
    ("lfm2, wide, biases, untied", 4, {}),
]


@pytest.mark.few(3)
@pytest.mark.parametrize("case, ranks, more", RECURRENT)
def test_recurrent_layers_are_cut_evenly_and_advance_alike(case: str, ranks: int, more: dict, tmp_path: Path) -> None:
    path = write_family(case, tmp_path, **more)
    model = open_checkpoint(path).model
    found = [tensor_slices(model, TensorParallelSplit(rank, ranks)) for rank in range(ranks)]
    for name, cut in found[0].items():
        held = torch.bincount(torch.cat([torch.from_numpy(each[name].kept) for each in found]), minlength=cut.places)
        assert len(held) == cut.places and held.unique().tolist() == [ranks * len(cut.kept) // cut.places], name
    tokens, own = prompt(model.vocab_size), narrowed_model(model, TensorParallelSplit(0, ranks)).states
    assert sum(part.bytes(torch.float32) for parts in own.values() for part in parts) * ranks == sum(
        part.bytes(torch.float32) for parts in model.states.values() for part in parts
    )
    rig = Rig(path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    for ours, asked in zip(steps_of_ranks(path, ranks, walk(tokens)), expected, strict=True):
        close(ours, asked, 5e-5, case)


@pytest.mark.parametrize("case", ["mamba 2", "qwen3 next", "granite 4, dense"])
def test_recurrent_layers_out_of_gguf_files(case: str, tmp_path: Path) -> None:
    path, tokens = twin(case, tmp_path), prompt(320)
    expected = Rig(path, attention="torch_native").step([(Row(tokens), len(tokens))], every_row=True)
    close(steps_of_ranks(path, 2, [[(Row(tokens), len(tokens))]])[0], expected, 2e-5, case)


@pytest.mark.parametrize("ranks, why", [(3, "4 query heads"), (8, "4 query heads")])
def test_what_does_not_divide_is_told(ranks: int, why: str, tmp_path: Path) -> None:
    from family_checks import reference

    reference("LlamaForCausalLM", **SIZES).save_pretrained(tmp_path)
    assert why in refusal(open_checkpoint(tmp_path).model, ranks)


def test_shares_are_the_whole_once(tmp_path: Path) -> None:
    """Every row of what is cut lies on exactly one rank; no rank's model is wider than its share."""
    from family_checks import reference

    reference("Phi3ForCausalLM", **SIZES).save_pretrained(tmp_path)
    model = open_checkpoint(tmp_path).model
    found = [tensor_slices(model, TensorParallelSplit(rank, 2)) for rank in range(2)]
    for name, cut in found[0].items():
        kept = torch.tensor([*cut.kept, *found[1][name].kept]).sort().values
        assert torch.equal(kept, torch.arange(cut.places)), name
    assert [narrowed_model(model, TensorParallelSplit(rank, 2)).head_rows for rank in range(2)] == [
        (0, 161),
        (161, 321),
    ]


class Memory:
    """A source of one tensor, which says what of it was read."""

    name, bytes = "memory", 0

    def __init__(self, tensor: torch.Tensor) -> None:
        self._raw = tensor.contiguous().view(-1).view(torch.uint8)
        self.tensors, self.read_bytes = [StoredTensor("x", "F32", list(tensor.shape), 0, len(self._raw))], 0

    def read(self, stored: StoredTensor, offset: int, part: torch.Tensor) -> None:
        self.read_bytes += len(part)
        part.copy_(self._raw[offset : offset + len(part)])


@pytest.mark.parametrize("axis", [0, 1])
def test_a_share_is_read_by_any_pieces(axis: int) -> None:
    generator = torch.Generator().manual_seed(3)
    whole = torch.rand(24, 18, generator=generator)
    for _ in range(40):
        kept = torch.randperm(whole.shape[axis], generator=generator)[
            : 1 + int(torch.randint(0, 17, (), generator=generator))
        ]
        kept = kept if torch.rand((), generator=generator) < 0.5 else kept.sort().values
        source = Memory(whole)
        share = ShardedWeightSource(source, {"x": TensorSlice(axis, whole.shape[axis], kept.numpy())})
        stored, asked = share.tensors[0], whole.index_select(axis, kept).contiguous().view(-1).view(torch.uint8)
        found, at = torch.empty_like(asked), 0
        while at < len(found):
            count = min(len(found) - at, int(torch.randint(1, 200, (), generator=generator)))
            share.read(copy.copy(stored), at, found[at : at + count])
            at += count
        assert torch.equal(found, asked) and (axis or source.read_bytes == len(asked))

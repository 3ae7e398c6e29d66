"""What adapters have beside pairs: DoRA, biases, whole modules, and adapters of
embedding and head, against PEFT merged and not.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import edit_json
from family_checks import logits_of, prompt, reference
from peft_adapters import make_adapter
from rig import Rig, Row
from safetensors.torch import load_file, save_file

from sgl.runtime.adapters.adapted_model import AdaptedModel
from sgl.runtime.adapters.adapter import Adapter, AdapterPacker
from sgl.runtime.adapters.adapter_extras import AdaptedEmbeddingTable, AdapterExtras, AdapterWeightChanges, LowRankDelta
from sgl.runtime.adapters.adapter_sites import AdapterSite, sites_of
from sgl.runtime.adapters.adapter_slots import AdapterSlots
from sgl.runtime.adapters.choose_adapter_kernels import reads_extras
from sgl.runtime.adapters.cpu_adapter_products import CpuAdapterProducts
from sgl.runtime.adapters.files import adapter_base_weights
from sgl.runtime.adapters.files.adapter_base_weights import LocalBaseWeights
from sgl.runtime.adapters.files.adapter_reader import AdapterReader
from sgl.runtime.adapters.lora_linear import ReferenceAdapters
from sgl.runtime.engine import Engine
from sgl.runtime.errors import CheckpointError, ConfigError, RuntimeFailure
from sgl.runtime.sampling.sampling_params import SamplingParams

TOLERANCE = 2e-5
OURS = (
    "intermediate_size",
    "num_key_value_heads",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
LLAMA = ("LlamaForCausalLM", {"num_hidden_layers": 2})
QWEN = ("Qwen2ForCausalLM", {"num_hidden_layers": 2})
GPT = ("GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, **dict.fromkeys(OURS, ...)})
PHI = ("Phi3ForCausalLM", {"num_hidden_layers": 2, "pad_token_id": 1})
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
    "topk_method": "greedy",
}
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "head_dim": 32,
}
BARE: dict[str, Any] = {
    **dict.fromkeys(("intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"), ...)
}
HYBRID = {"layer_types": ["conv", "full_attention", "conv", "conv"], "block_multiple_of": 32}
QUERIES = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "down_proj"]
MIXERS: dict[str, tuple[tuple[str, dict[str, Any]], dict[str, Any]]] = {
    "latent": (("DeepseekV2ForCausalLM", LATENT), {"target_modules": r".*self_attn\.(" + "|".join(QUERIES) + ")"}),
    "latent, plain queries": (
        ("DeepseekV2ForCausalLM", LATENT | {"q_lora_rank": None}),
        {"target_modules": ["q_proj", "o_proj"]},
    ),
    "latent, dora": (
        ("DeepseekV2ForCausalLM", LATENT | {"attention_bias": True}),
        {"target_modules": ["q_b_proj", "kv_a_proj_with_mqa"], "use_dora": True},
    ),
    "mamba": (("MambaForCausalLM", BARE | {"use_bias": True}), {"target_modules": ["in_proj", "x_proj"]}),
    "mamba 2": (
        ("Mamba2ForCausalLM", BARE | {"num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 16}),
        {"target_modules": ["in_proj"]},
    ),
    "delta": (("Qwen3_5ForCausalLM", DELTA), {"target_modules": ["in_proj_qkv", "in_proj_z", "out_proj", "q_proj"]}),
    "short convolutions": (("Lfm2ForCausalLM", HYBRID), {"target_modules": ["in_proj", "out_proj", "q_proj", "w2"]}),
}
TIED = ("LlamaForCausalLM", {"num_hidden_layers": 2, "tie_word_embeddings": True})
GEMMA = ("GemmaForCausalLM", {"num_hidden_layers": 2, "head_dim": 16})
SOME: dict[str, Any] = {"target_modules": ["q_proj", "down_proj"]}
CASES: dict[str, tuple[tuple[str, dict[str, Any]], dict[str, Any]]] = {
    "dora": (LLAMA, {"use_dora": True}),
    "dora with biases": (QWEN, {"use_dora": True, "use_rslora": True}),
    "dora of merged": (PHI, {"use_dora": True}),
    "dora transposed": (
        GPT,
        {"use_dora": True, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
    ),
    "bias all": (QWEN, {"bias": "all"}),
    "bias of pairs' modules": (QWEN, {"bias": "lora_only", "target_modules": ["q_proj", "k_proj", "up_proj"]}),
    "biases of pairs": (QWEN, {"lora_bias": True, "target_modules": ["q_proj", "v_proj"]}),
    "whole tables": (LLAMA, {"modules_to_save": ["lm_head", "embed_tokens"], **SOME}),
    "whole head": (LLAMA, {"modules_to_save": ["lm_head"], **SOME}),
    "whole embedding, tied": (TIED, {"modules_to_save": ["embed_tokens"], **SOME}),
    "head": (LLAMA, {"target_modules": ["lm_head", "q_proj"]}),
    "embedding": (LLAMA, {"target_modules": ["embed_tokens", "q_proj"]}),
    "embedding, scaled": (GEMMA, {"target_modules": ["embed_tokens", "q_proj"]}),
    "embedding and head alone": (LLAMA, {"target_modules": ["embed_tokens", "lm_head"]}),
    "tokens": (LLAMA, {"trainable_token_indices": [5, 9, 17], **SOME}),
    "tokens by name": (LLAMA, {"trainable_token_indices": {"embed_tokens": [5, 9, 17]}, **SOME}),
    "dora and all": (
        QWEN,
        {"use_dora": True, "bias": "all", "modules_to_save": ["lm_head"], "trainable_token_indices": [3, 4]},
    ),
}


def trained(model: Any, path: Path, **keys: Any) -> Any:
    """An adapter all of whose own parts are other than what they began as; saved in `path`."""
    adapted = make_adapter(model, path, **keys)
    torch.manual_seed(7)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_magnitude_vector" in name:
                parameter.uniform_(0.5, 2.0)
            elif (parameter.requires_grad and "lora_" not in name) or ".lora_B.default.bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    adapted.save_pretrained(path)
    return adapted


def with_adapters(rig: Rig, *paths: Path, law: str = "compiled") -> tuple[AdapterReader, list[Adapter]]:
    rig.model.adapted, sites = None, sites_of(rig.model.config, True)
    reader = AdapterReader(rig.model.config, sites, rig.model.dtype, base=LocalBaseWeights(rig.model, sites))
    slots = AdapterSlots(sites, rig.model.dtype, torch.device("cpu"), {16: max(8, len(paths))}, False)
    adapters = [reader.read(path) for path in paths]
    for adapter in adapters:
        assert slots.take(adapter.digest, adapter, False)
    rig.model.adapted = AdaptedModel(
        rig.model,
        sites,
        CpuAdapterProducts(slots, sites, len(rig.model.layers)) if law == "compiled" else ReferenceAdapters(slots),
    )
    return reader, adapters


def logits_with(rig: Rig, tokens: list[int], slot: int) -> torch.Tensor:
    rig.adapters = [slot]
    return rig.step([(Row(tokens), len(tokens))], every_row=True)


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("law", ["torch", "compiled"])
def test_logits_are_those_of_peft_merged_and_not(case, law, tmp_path):
    (architecture, keys), lora = CASES[case]
    model = reference(architecture, **keys)
    model.save_pretrained(tmp_path / "base")
    adapted = trained(model, tmp_path / "adapter", **lora)
    rig, tokens = Rig(tmp_path / "base"), [5, 9, 3, 4, *prompt(320)]
    expected, base = logits_of(adapted, tokens), logits_of(model, tokens)
    assert (expected - base).abs().max() > 0.05 * base.abs().max()
    _, (adapter,) = with_adapters(rig, tmp_path / "adapter", law=law)
    assert adapter.extras
    wanted = [expected]
    if not lora.get("lora_bias"):
        wanted.append(logits_of(adapted.merge_and_unload(), tokens))
    found = logits_with(rig, tokens, 0)
    for each in wanted[
        : 1 if model.config.tie_word_embeddings and case != "dora transposed" else 2
    ]:  # PEFT's merging into a tied table changes the head too
        assert (found - each).abs().max() < TOLERANCE * each.abs().max()
    assert (logits_with(rig, tokens, -1) - base).abs().max() < TOLERANCE * base.abs().max()


@pytest.mark.few(1)
@pytest.mark.parametrize("case", MIXERS)
@pytest.mark.parametrize("law", ["torch", "compiled"])
def test_mixers_of_other_kinds_are_adapted_by_the_law(case, law, tmp_path):
    (architecture, keys), lora = MIXERS[case]
    model = reference(architecture, **keys)
    model.save_pretrained(tmp_path / "base")
    adapted = trained(model, tmp_path / "adapter", **lora)
    rig, tokens = Rig(tmp_path / "base"), prompt(320)
    expected, base = logits_of(adapted, tokens), logits_of(model, tokens)
    assert (expected - base).abs().max() > 0.02 * base.abs().max()
    with_adapters(rig, tmp_path / "adapter", law=law)
    merged = logits_of(adapted.merge_and_unload(), tokens)
    found = logits_with(rig, tokens, 0)
    for each in (expected, merged):
        assert (found - each).abs().max() < 2 * TOLERANCE * each.abs().max()
    assert (logits_with(rig, tokens, -1) - base).abs().max() < 2 * TOLERANCE * base.abs().max()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Rig, Path, Any]:
    path = tmp_path_factory.mktemp("extras")
    model = reference(*QWEN[:1], **QWEN[1])
    model.save_pretrained(path / "base")
    return Rig(path / "base"), path, model


def test_rows_of_all_kinds_in_one_step_are_what_each_is_alone(made, tmp_path):
    rig, _, model = made
    kinds = [
        {"use_dora": True},
        {},
        {"modules_to_save": ["lm_head"]},
        {"target_modules": ["embed_tokens", "lm_head", "k_proj"]},
        {"bias": "all"},
        SOME,
    ]
    for i, keys in enumerate(kinds):
        trained(model, tmp_path / str(i), seed=i, **keys)
    with_adapters(rig, *(tmp_path / str(i) for i in range(len(kinds))))
    owners = [3, -1, 0, 1, 2, 5, 4, 0, -1, 2]
    prompts = [prompt(320, 3 + i, i) for i in range(len(owners))]
    alone = [logits_with(rig, tokens, slot)[-1] for tokens, slot in zip(prompts, owners, strict=True)]
    rig.adapters = owners
    together = rig.step([(Row(tokens), len(tokens)) for tokens in prompts])
    for one, many in zip(alone, together, strict=True):
        assert (one - many).abs().max() < TOLERANCE * one.abs().max()


def test_the_digest_tells_apart_what_only_lies_beside_the_pairs(made, tmp_path):
    rig, _, model = made
    trained(model, tmp_path / "a", use_dora=True, target_modules=["q_proj"])
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    name = next(name for name in tensors if name.endswith("lora_magnitude_vector"))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "adapter_config.json").write_text((tmp_path / "a" / "adapter_config.json").read_text())
    save_file(tensors | {name: tensors[name] * 2}, tmp_path / "b" / "adapter_model.safetensors")
    _, (first, second) = with_adapters(rig, tmp_path / "a", tmp_path / "b")
    assert first.digest != second.digest and first.bytes > first.memory.nbytes


def edited(path: Path, target: Path, tensors: dict[str, torch.Tensor | None], **config: Any) -> Path:
    target.mkdir()
    values = json.loads((path / "adapter_config.json").read_text())
    (target / "adapter_config.json").write_text(json.dumps(values | config))
    merged = load_file(path / "adapter_model.safetensors") | tensors
    save_file(
        {name: tensor for name, tensor in merged.items() if tensor is not None}, target / "adapter_model.safetensors"
    )
    return target


def test_what_does_not_fit_together_is_refused_by_name(made, tmp_path):
    rig, _, model = made
    reader, _ = with_adapters(rig)
    trained(model, tmp_path / "dora", use_dora=True, target_modules=["q_proj"])
    trained(model, tmp_path / "ends", target_modules=["embed_tokens", "lm_head", "q_proj"])
    trained(model, tmp_path / "head", modules_to_save=["lm_head"], **SOME)
    trained(model, tmp_path / "tokens", trainable_token_indices=[1, 2], **SOME)
    q, table, begin = (
        "base_model.model.model.layers.0.self_attn.q_proj",
        "base_model.model.model.embed_tokens",
        "base_model.model.model",
    )
    cases: dict[str, Path] = {
        "use_dora": edited(tmp_path / "dora", tmp_path / "1", {}, use_dora=False),
        "lacks .*lora_magnitude_vector": edited(
            tmp_path / "dora", tmp_path / "2", {f"{q}.lora_magnitude_vector": None}
        ),
        "has shape": edited(tmp_path / "dora", tmp_path / "3", {f"{q}.lora_magnitude_vector": torch.ones(3)}),
        "holds I8; supported are": edited(
            tmp_path / "dora", tmp_path / "12", {f"{q}.lora_magnitude_vector": torch.ones(64, dtype=torch.int8)}
        ),
        "belongs to no pair": edited(
            tmp_path / "dora", tmp_path / "4", {f"{begin}.layers.0.mlp.up_proj.lora_magnitude_vector": torch.ones(96)}
        ),
        "table is another": edited(
            tmp_path / "ends", tmp_path / "5", {f"{table}.base_layer.weight": torch.zeros(320, 64)}
        ),
        "half of a pair": edited(tmp_path / "ends", tmp_path / "6", {f"{table}.lora_embedding_B": None}),
        "the model asks for": edited(
            tmp_path / "head", tmp_path / "7", {"base_model.model.lm_head.weight": torch.zeros(321, 64)}
        ),
        "modules_to_save": edited(tmp_path / "head", tmp_path / "8", {}, modules_to_save=None),
        "has no tensor of what .*trainable_token_indices": edited(
            tmp_path / "head", tmp_path / "11", {}, trainable_token_indices=[1]
        ),
        "no module": edited(tmp_path / "head", tmp_path / "9", {f"{begin}.norm.weight": torch.zeros(64)}),
        "does not name the 2 tokens": edited(tmp_path / "tokens", tmp_path / "10", {}, trainable_token_indices=[1]),
    }
    for message, path in cases.items():
        with pytest.raises(CheckpointError, match=message):
            reader.read(path)


def test_rows_of_a_tied_embedding_are_refused(tmp_path):
    model = reference(*TIED[:1], **TIED[1])
    model.save_pretrained(tmp_path / "base")
    trained(model, tmp_path / "it", trainable_token_indices=[1], **SOME)
    reader, _ = with_adapters(Rig(tmp_path / "base"))
    edit_json(tmp_path / "it" / "adapter_config.json", modules_to_save=None)
    with pytest.raises(CheckpointError, match="tied"):
        reader.read(tmp_path / "it")


def test_an_engine_writes_what_peft_writes_and_plain_rows_stay_what_they_are(open_engine, tiny, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    kinds: dict[str, dict[str, Any]] = {
        "dora": {"use_dora": True},
        "plain": {},
        "ends": {"target_modules": ["embed_tokens", "q_proj"], "modules_to_save": ["lm_head"]},
    }
    adapted = {name: trained(model, tmp_path / name, seed=i, **keys) for i, (name, keys) in enumerate(kinds.items())}
    engine, tokens = open_engine(adapters={name: tmp_path / name for name in kinds}), list(range(40, 60))
    asked = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    owners = [None, "dora", "plain", "ends", "plain", "dora", None]
    sequences = [engine.open(adapter=owner) for owner in owners]
    for sequence in sequences:
        sequence.extend(tokens)
    texts = [future.result().token_ids for future in [sequence.generate(asked) for sequence in sequences]]
    for owner, text in zip(owners, texts, strict=True):
        written = (model if owner is None else adapted[owner]).generate(
            input_ids=torch.tensor([tokens]), max_new_tokens=6, do_sample=False, eos_token_id=None
        )
        assert text == written[0, len(tokens) :].tolist()
    running = engine.open(adapter="dora")
    running.extend(tokens)
    begun = running.generate(SamplingParams(max_tokens=400, temperature=0, ignore_eos=True))
    shutil.rmtree(tmp_path / "dora")
    engine.update_weights(tiny)  # DoRA's factors would be those beside other weights
    with pytest.raises(Exception, match="dora"):
        begun.result()
    with pytest.raises(Exception, match="dora"):
        engine.generate("a b", asked, adapter="dora")
    assert engine.generate("a b", asked, adapter="plain").token_ids and engine.stats().adapters["slots_held"] == 0


def test_bits_of_a_row_do_not_depend_on_the_batch_where_they_are_not_to(tiny, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    kinds: dict[str, dict[str, Any]] = {
        "dora": {"use_dora": True},
        "plain": {},
        "ends": {"target_modules": ["embed_tokens", "lm_head", "q_proj"]},
        "saved": {"modules_to_save": ["lm_head", "embed_tokens"], **SOME},
        "biases": {"lora_bias": True, "bias": "lora_only", **SOME},
        "tokens": {"trainable_token_indices": [40, 44], **SOME},
    }
    for i, (name, keys) in enumerate(kinds.items()):
        trained(model, tmp_path / name, seed=i, **keys)
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, logprobs=True)
    for dtype in ("float32", "bfloat16"):
        with Engine(
            tiny,
            dtype=dtype,
            threads=1,
            kv_tokens=4096,
            deterministic=True,
            adapters={name: tmp_path / name for name in kinds},
        ) as engine:
            assert set(engine.info()["adapters"]["outside"]) == set(kinds) - {"plain"}

            def found(names: list[str | None], engine: Engine = engine) -> list[Any]:
                engine.flush_cache()
                sequences = [engine.open(adapter=name) for name in names]
                for i, sequence in enumerate(sequences):
                    sequence.extend(list(range(40, 49 + len(names[i] or ""))))
                return [future.result().logprobs for future in [sequence.generate(params) for sequence in sequences]]

            owners = [None, *kinds]
            alone = [found([name])[0] for name in owners]
            assert found(owners) == alone and found([*owners, *owners]) == alone * 2
            assert found(["plain", None, "plain"]) == [alone[2], alone[0], alone[2]]


@pytest.mark.parametrize(
    "architecture, keys, wanted",
    [(*LLAMA, True), ("Lfm2ForCausalLM", HYBRID, False), ("DeepseekV2ForCausalLM", LATENT, False)],
)
def test_bits_of_other_mixers_and_of_mixtures_are_not_promised(architecture, keys, wanted, tmp_path):
    reference(architecture, **keys).save_pretrained(tmp_path / "base")
    model = Rig(tmp_path / "base").model
    assert [reads_extras(model, each) for each in (True, False)] == [wanted, True]


def test_strict_engines_refuse_what_runs_outside_of_the_compiled_step(tiny, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    for name, keys in {"dora": {"use_dora": True}, "plain": {}}.items():
        trained(model, tmp_path / name, **keys)
    with Engine(
        tiny, dtype="float32", threads=1, kv_tokens=512, strict=True, adapters={"plain": tmp_path / "plain"}
    ) as engine:
        with pytest.raises(ConfigError, match=r"strict=True\): adapter 'dora' changes DoRA"):
            engine.adapters.load("dora", tmp_path / "dora")
        assert engine.adapters.get("plain").outside == ""


def with_tables(sites: tuple[AdapterSite, ...], seed: int) -> Adapter:
    torch.manual_seed(seed)
    return AdapterPacker(sites, torch.float32).pack(
        {}, AdapterWeightChanges(embedding=AdaptedEmbeddingTable(whole=torch.randn(10, 8)))
    )


def test_room_for_tables_is_emptied_for_who_has_waited_long_and_kept_for_nobody_that_is_gone(made):
    sites = sites_of(made[0].model.config)
    popular, small, other = with_tables(sites, 1), AdapterPacker(sites, torch.float32).pack({}), with_tables(sites, 2)
    slots = AdapterSlots(sites, torch.float32, torch.device("cpu"), {8: 4}, False, room=popular.most_extras + 10)

    def take(adapter: Adapter) -> bool:
        return slots.take(adapter.digest, adapter, False)

    held, turns = sum(take(popular) for _ in range(3)), 0
    while not take(other):  # sequences of the popular one come and go
        if held:
            slots.drop(popular.digest)
        held, turns = held - 1 + take(popular), turns + 1
        assert turns < 60 and take(small)
    assert not slots.has(popular.digest) and not take(popular)
    for _ in range(20):
        assert not take(popular)  # now that one waits, and gives up
    slots.drop(other.digest)
    for _ in range(300):
        take(small)
    assert take(other)


def test_weights_that_an_engine_on_a_gpu_has_put_away_are_not_read():
    weight = torch.empty(2, 2, device="meta")  # as no CPU's, without memory
    weight.untyped_storage().resize_(0)
    with pytest.raises(RuntimeFailure, match="wake it first"):
        adapter_base_weights._read(weight)


def test_all_that_is_beside_pairs_goes_to_a_gpu_as_one_copy():
    draw = torch.Generator().manual_seed(3)
    a, b = torch.randn(4, 6, generator=draw).bfloat16(), torch.randn(6, 4, generator=draw).bfloat16().T
    mixture = {
        (place, name): [LowRankDelta(0, a, b.contiguous() + place, 2.0, torch.arange(4))]
        for place in range(3)
        for name in ("gate", "up")
    }
    apart = AdapterExtras(
        {7: torch.randn(5, generator=draw), 2: torch.randn(3, generator=draw)},
        {},
        AdaptedEmbeddingTable(rows=torch.tensor([4, 1]), values=b[:2]),
        None,
        {1: mixture},
    )
    there = apart.copied(torch.clone)
    piece = there.piece
    assert (
        piece is not None and piece.nbytes < apart.bytes + 64 * len(list(apart.tensors())) - 5 * a.nbytes
    )  # what modules share lies there once
    for one, other in zip(there.tensors(), apart.tensors(), strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype
        assert piece.data_ptr() <= one.data_ptr() < piece.data_ptr() + piece.nbytes and one.data_ptr() % 16 == 0
    piece.zero_()
    assert not any(bool(tensor.any()) for tensor in there.tensors()) and bool(a.any())

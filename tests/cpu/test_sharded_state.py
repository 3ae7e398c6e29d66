"""The sharded state: what `sgl shard` writes is computed with bit by bit as the
model that is quantised while it loads.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import edit_json, write_checkpoint, write_tokenizer
from family_cases import write_family
from rig import Rig, Row
from safetensors.torch import load_file, save_file
from test_kv_scales import LAYERS, WRITERS, scales, written
from test_quantized_loading import FORMATS, write

from sgl.cli import main
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.build.memory_estimate import estimate_memory
from sgl.runtime.calibration.quantize_checkpoint import quantize
from sgl.runtime.calibration.shard_checkpoint import shard
from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.loading import load_model
from sgl.runtime.loading.sharded_state import MANIFEST, ParallelSizes
from sgl.runtime.quantization import device_weight, online_quantization, transform_for

pytestmark = pytest.mark.skipif(
    not cpu_kernels.kernels or not (cpu_kernels.kernels.INT4 and cpu_kernels.kernels.VNNI),
    reason="needs the kernels that weights are packed for",
)
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
CPU = torch.device("cpu")
FILE = "state-rank-0-part-00001.safetensors"
TOKENS = [5, 6, 7, 61, 11, 40]


def logits(path: Path, dtype: torch.dtype = torch.float32, transform: Any = None) -> torch.Tensor:
    model = load_model(path, dtype, transform=transform)
    return Rig(path, dtype, model=model).step([(Row(TOKENS), len(TOKENS))], every_row=True)


def same(origin: Path, state: Path, weights: str, dtype: torch.dtype = torch.float32) -> None:
    assert torch.equal(logits(state, dtype), logits(origin, dtype, transform_for(weights, False, CPU)))


@pytest.mark.parametrize("weights", ["auto", "int8", "int4", "int4_hqq", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("family, keys", [("llama", {}), ("qwen2", {"tie_word_embeddings": True}), ("phi3", {})])
def test_the_bits_of_quantising_while_loading(family: str, keys: dict[str, Any], weights: str, tmp_path: Path) -> None:
    origin = write_checkpoint(tmp_path / "m", family, **keys)
    report = shard(origin, tmp_path / "state", weights)
    assert report.bytes == sum(tensor.nbytes for tensor in load_file(tmp_path / "state" / FILE).values())
    assert set(report.packed) == set() if weights == "auto" else set(report.packed) <= {"int4", "int8", "int8_grouped"}
    assert (report.dense == 0 and report.bytes < report.bytes_before / 2) if weights != "auto" else not report.packed
    same(origin, tmp_path / "state", weights)


@pytest.mark.parametrize("case", ["gpt2", "gpt_neox", "bloom", "opt", "gemma2", "cohere"])
def test_rows_in_any_order_biases_and_norms_of_other_families(case: str, tmp_path: Path) -> None:
    origin = write_family(case, tmp_path / "m")
    for weights in ("auto", "int4"):
        shard(origin, tmp_path / weights, weights)
        same(origin, tmp_path / weights, weights)


@pytest.mark.parametrize("case", ["qwen3 moe", "qwen2 moe", "mixtral", "gpt-oss", "glm 4.5", "phimoe"])
@pytest.mark.parametrize("weights", ["auto", "int8", "int4"])
def test_mixtures_of_experts(case: str, weights: str, tmp_path: Path) -> None:
    origin = write_family(case, tmp_path / "m")
    shard(origin, tmp_path / "state", weights)
    same(origin, tmp_path / "state", weights)


@pytest.mark.parametrize("name", ["gptq", "awq", "int8", "torchao"])
def test_checkpoints_in_few_bits_stay_what_they_are_here(name: str, tmp_path: Path) -> None:
    origin, _ = write(tmp_path, *FORMATS[name])
    report = shard(origin, tmp_path / "state")
    assert report.packed == {"int8" if name == "int8" else "int4": 12}
    assert "quantization_config" not in json.loads((tmp_path / "state" / "config.json").read_text())
    same(origin, tmp_path / "state", "auto")


@pytest.mark.parametrize("name", ["fp8 blocks", "fp8 outputs", "nf4"])
def test_small_floats_that_are_computed_as_such_are_refused_by_name(name: str, tmp_path: Path) -> None:
    origin, _ = write(tmp_path, *FORMATS[name])
    with pytest.raises(
        ConfigError,
        match=r"a projection is computed by (FloatBlockedLinear|GroupedLinear|MixedFormatBlockedLinear), which sgl "
        r"shard does not pack; .*sgl quantize",
    ):
        shard(origin, tmp_path / "state")
    assert not (tmp_path / "state").exists() and not (tmp_path / "state.part").exists()


def test_projections_of_which_a_part_came_in_few_bits(tmp_path: Path) -> None:
    """Where nothing multiplies them so, they are restored, and written so."""
    origin, _ = write(tmp_path, *FORMATS["gptq"], leave=("v_proj.weight",))
    with pytest.raises(ConfigError, match="is computed by MixedFormatBlockedLinear, which sgl shard does not pack"):
        shard(origin, tmp_path / "state")
    assert not shard(origin, tmp_path / "state", dtype="float16").packed
    same(origin, tmp_path / "state", "auto", torch.float16)


def test_a_head_of_length_1_is_refused(tmp_path: Path) -> None:
    keys = {
        "architectures": ["BaichuanForCausalLM"],
        "model_type": "baichuan",
        "z_loss_weight": 0,
        "num_key_value_heads": ...,
    }
    edit_json(write_checkpoint(tmp_path / "m", vocab_size=125696) / "config.json", **keys)
    with pytest.raises(ConfigError, match="its head is brought to length 1 while it loads"):
        shard(tmp_path / "m", tmp_path / "state")


def test_other_dtypes(tmp_path: Path) -> None:
    """Dense tensors are converted as those of any checkpoint; packed ones are of no dtype."""
    origin = write_checkpoint(tmp_path / "m")
    shard(origin, tmp_path / "state", "int4", dtype="bfloat16")
    assert load_file(tmp_path / "state" / FILE)["model.embed_tokens.weight"].dtype == torch.bfloat16
    same(origin, tmp_path / "state", "int4", torch.bfloat16)


def test_float8_weights_of_a_gpu_are_read_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = write_checkpoint(tmp_path / "m", intermediate_size=128)
    assert shard(origin, tmp_path / "state", "fp8").packed == {"float8": 12}
    with pytest.raises(
        CheckpointError, match=r"packed as float8 for a GPU with compute capability 8\.9, which is not here \(cpu\)"
    ):
        load_model(tmp_path / "state")
    monkeypatch.setattr(device_weight.Float8Format, "missing", lambda self, device: None)
    same(origin, tmp_path / "state", "fp8")


def test_several_files_and_scales_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgl.runtime.calibration.shard_writer.SHARD", 50_000)
    origin = written(tmp_path / "m", scales(WRITERS["ModelOpt"], LAYERS))
    shard(origin, tmp_path / "state", "int8")
    assert len(list((tmp_path / "state").glob("state-rank-0-part-*.safetensors"))) > 2
    assert load_model(tmp_path / "state").kv_scales == tuple(LAYERS)
    same(origin, tmp_path / "state", "int8")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("state")
    origin = write_checkpoint(place / "m", tokenizer=True)
    shard(origin, place / "state", "int4")
    return origin, place / "state"


def opened(path: Path, **options: Any) -> Engine:
    return Engine(path, **{"device": "cpu", "dtype": "float32", "kv_tokens": 512} | options)


def ids(engine: Engine) -> list[int]:
    return list(engine.generate("The quick brown fox", GREEDY).token_ids)


def test_an_engine_finds_it_and_quantises_nothing(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folders[0], weights="int4") as engine:
        expected = ids(engine)
    monkeypatch.setitem(online_quantization.ROUNDINGS, "int4", None)
    monkeypatch.setattr("sgl.runtime.quantization.cpu_int8_linear.quantize_weight", None)
    monkeypatch.setattr("sgl.runtime.quantization.cpu_int4_linear._CpuBlockPacker", None)
    for options in ({}, {"load_format": "sharded_state"}, {"strict": True}):
        with opened(folders[1], **options) as engine:
            assert ids(engine) == expected
            assert engine.info()["few_bits"] == [
                "12 projections of packed int4: Int4BlockedLinear",
                "1 projections of packed int8_grouped: Int8GroupedLinear",
            ]
    found = estimate_memory(folders[1], EngineConfig())
    assert found.files.problem is None and found.files.count == 1


def test_an_engine_that_runs_takes_it(folders: tuple[Path, Path]) -> None:
    with opened(folders[0]) as dense, opened(folders[1]) as packed:
        first, second = ids(dense), ids(packed)
        dense.update_weights(folders[1])
        packed.update_weights(folders[0])
        assert (ids(packed), ids(dense)) == (first, second)
        assert dense.info()["few_bits"] and not packed.info()["few_bits"]


@pytest.mark.parametrize("options", [{"weights": "int8"}, {"weights": "int4"}, {"deterministic": True}])
def test_options_that_would_quantise_again_are_refused(folders: tuple[Path, Path], options: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match="packed as they were written: leave weights at 'auto' and deterministic at False"
    ):
        opened(folders[1], **options)


def test_a_machine_without_the_kernels_is_told(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        INT4 = VNNI = 0

    monkeypatch.setattr(cpu_kernels, "kernels", Older)
    with pytest.raises(
        CheckpointError, match=r"packed as int\w+ for the compiled kernels .* which is not here \(cpu\); take the model"
    ):
        load_model(folders[1])


def test_a_dtype_that_the_kernels_lack_is_told(folders: tuple[Path, Path]) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"packed as int\w+, which goes with float32 and bfloat16, the model is in torch.float16: set dtype",
    ):
        load_model(folders[1], torch.float16)


def test_a_refused_update_leaves_the_engine_as_it_was(folders: tuple[Path, Path]) -> None:
    with opened(folders[0], weights="int8") as engine:
        before = ids(engine)
        with pytest.raises(ConfigError, match="packed as they were written"):
            engine.update_weights(folders[1])
        assert ids(engine) == before


def test_what_cannot_be_written(folders: tuple[Path, Path], tmp_path: Path) -> None:
    for origin, more, message in (
        (folders[1], {}, "is a sharded state already"),
        (folders[0], {"parts": ParallelSizes(3)}, "query heads cannot be shared out among 3 ranks"),
        (tmp_path / "x.gguf", {}, "is a GGUF file"),
        (folders[0], {"weights": "int3"}, "there is no such kind"),
        (folders[0], {"weights": "int4_gptq"}, "write it with sgl quantize, and shard what that wrote"),
        (folders[0], {"weights": "fp8_block"}, "is computed by FloatBlockedLinear"),
        (folders[0], {"dtype": "float16", "weights": "int8"}, "goes with float32 and bfloat16"),
    ):
        with pytest.raises(ConfigError, match=message):
            shard(origin, tmp_path / "out", **more)
        assert not (tmp_path / "out").exists() and not (tmp_path / "out.part").exists()
    with pytest.raises(ConfigError, match="is a sharded state, whose weights are packed"):
        quantize(folders[1], tmp_path / "out", "int4")
    with pytest.raises(ConfigError, match="is there already"):
        shard(folders[0], folders[1])
    with pytest.raises(CheckpointError, match=f"has no {MANIFEST}: it is no sharded state"):
        opened(folders[0], load_format="sharded_state")


def spoiled(
    state: Path, tmp_path: Path, rank: int, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]
) -> Path:
    """A copy whose manifest and first file of a rank are others; the size of the file is told as it is then."""
    path, file = Path(shutil.copytree(state, tmp_path / "spoiled")), FILE.replace("rank-0", f"rank-{rank}")
    said, tensors = json.loads((path / MANIFEST).read_text()), load_file(path / file)
    before = set(tensors.items())
    change(said, tensors)
    if set(tensors.items()) != before:
        save_file(tensors, path / file, {"rank": str(rank)})
        said["ranks"][rank]["files"][file] = (path / file).stat().st_size
    (path / MANIFEST).write_text(json.dumps(said))
    return path


BLOCKS = "packed.1.0.blocks"
SPOILED: dict[str, tuple[Callable[..., Any], str]] = {  # what the manifest says of the rank, and its tensors
    "no object": (lambda said, tensors: said.update(packed=[]), "files and packed of rank 0 are"),
    "elsewhere": (
        lambda said, tensors: said.update(files={"../model.safetensors": 1}),
        "is called state-rank-0-part-00001",
    ),
    "absent": (
        lambda said, tensors: said["files"].update({FILE.replace("1.safe", "2.safe"): 1}),
        "lacks state-rank-0-part-00002",
    ),
    "kind": (
        lambda said, tensors: said["packed"]["1.0"].update(kind="int3"),
        "known kinds: int4, int8, int8_grouped, float8",
    ),
    "another kind": (lambda said, tensors: said["packed"]["1.0"].update(kind="int8_grouped"), "its numbers cannot be"),
    "not whole": (lambda said, tensors: said["packed"]["1.0"]["numbers"].update(group=64.5), "known kinds"),
    "group": (lambda said, tensors: said["packed"]["1.0"]["numbers"].update(group=24), "its numbers cannot be"),
    "negative": (lambda said, tensors: said["packed"]["1.0"]["numbers"].update(group=-64), "its numbers cannot be"),
    **{
        f"{name} {value}": (
            lambda said, tensors, name=name, value=value: said["packed"]["1.0"]["numbers"].update({name: value}),
            "its numbers cannot be",
        )
        for name, value in (
            ("shifts", 6),
            ("shifts", -1),
            ("shifts", 5),
            ("scales", 3),
            ("scales", -1),
            ("fold", 1),
            ("fold", -1),
            ("bits", 8),
            ("bits", 0),
            ("above", 128),
        )
    },
    "twofold": (
        lambda said, tensors: said["packed"]["1.0"]["numbers"].update(scales=2, fold=60),
        "its numbers cannot be",
    ),
    "other twofold": (
        lambda said, tensors: said["packed"]["1.0"]["numbers"].update(scales=2, group=16),
        "blocks must be U8",
    ),
    "centre": (lambda said, tensors: said["packed"]["1.0"]["numbers"].update(centre=10**9), "its numbers cannot be"),
    "fewer": (lambda said, tensors: said["packed"]["1.0"].update(numbers={}), "its numbers cannot be"),
    "halves": (
        lambda said, tensors: said["packed"]["1.0"]["numbers"].update(scales=0, group=16),
        r"packed projection 1\.0 \[128, 64\]: blocks must be U8",
    ),
    "no such layer": (
        lambda said, tensors: said["packed"].update({"9.0": said["packed"]["1.0"]}),
        r"has a packed projection '9\.0'",
    ),
    "missing": (lambda said, tensors: tensors.pop(BLOCKS), "it is missing"),
    "short": (lambda said, tensors: tensors.update({BLOCKS: tensors[BLOCKS][1:].clone()}), "blocks must be U8"),
    "dtype": (lambda said, tensors: tensors.update({BLOCKS: tensors[BLOCKS].view(torch.int8)}), "blocks must be U8"),
    "more": (lambda said, tensors: tensors.update({"packed.1.0.more": torch.ones(1)}), "more .* is no part of it"),
    "nobody's": (lambda said, tensors: tensors.update({"packed.9.9.blocks": torch.ones(1)}), "has no place"),
    "dense too": (
        lambda said, tensors: tensors.update({"model.layers.0.self_attn.o_proj.weight": torch.ones(64, 64)}),
        "has no place",
    ),
    "dense instead": (lambda said, tensors: said["packed"].pop("1.0"), "has no place"),
    "order": (
        lambda said, tensors: tensors.update({"packed.1.0.order": torch.full((64,), 64, dtype=torch.int32)}),
        "its order of the inputs is none of 64",
    ),
    "table": (
        lambda said, tensors: tensors.update({"packed.1.0.table": torch.zeros(15, dtype=torch.uint8)}),
        r"table must be U8 \[16\], it is U8 \[15\]",
    ),
    "factor": (
        lambda said, tensors: tensors.update({"packed.1.0.factor": torch.ones(127)}),
        r"factor must be F32 \[128\], it is F32 \[127\]",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_damage_is_named(name: str, folders: tuple[Path, Path], tmp_path: Path) -> None:
    change, message = SPOILED[name]
    with pytest.raises(CheckpointError, match=message):
        load_model(spoiled(folders[1], tmp_path, 0, lambda said, tensors: change(said["ranks"][0], tensors)))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin = write_tokenizer(write_checkpoint(tmp_path / "m"))
    edit_json(origin / "config.json", quantization_config=...)
    assert main(["shard", str(origin), str(tmp_path / "out"), "--weights", "int4", "--dtype", "bfloat16"]) == 0
    assert "projections  12 of int4, 1 of int8_grouped; 0 dense" in capsys.readouterr().out
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert main(["shard", str(origin), str(tmp_path / "out")]) == 1
    assert "is there already" in capsys.readouterr().err

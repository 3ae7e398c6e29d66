"""A sharded state over ranks: each loads from its own files, bit by bit, what
it would make of the model while loading.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import edit_json, write_checkpoint
from family_cases import write_family
from loaded_models import load_stage
from ranks_rig import CPU, drawn, steps_of_ranks
from ranks_rig import written as written_by
from rig import Rig, Row
from states_rig import write_case
from test_kv_scales import LAYERS, WRITERS, scales, written
from test_quantized_loading import FORMATS, write
from test_sharded_state import spoiled

from sgl.cli import main
from sgl.runtime import Engine
from sgl.runtime.build.build_engine import build_engine
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.build.memory_estimate import estimate_memory
from sgl.runtime.build.sharding_plan import read
from sgl.runtime.calibration.quantize_checkpoint import quantize
from sgl.runtime.calibration.shard_checkpoint import shard
from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.loading import load_model
from sgl.runtime.loading.sharded_state import MANIFEST, WHOLE, ParallelSizes, read_manifest
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.parallel.ep.expert_parallel_split import ExpertParallelSplit
from sgl.runtime.parallel.pp.pipeline_stages import RankPlace, require_state
from sgl.runtime.quantization import transform_for

pytestmark = pytest.mark.skipif(
    not cpu_kernels.kernels or not (cpu_kernels.kernels.INT4 and cpu_kernels.kernels.VNNI),
    reason="needs the kernels that weights are packed for",
)
OPTIONS = {"device": "cpu", "dtype": "float32", "threads": 1, "kv_tokens": 2048, "max_running": 8}
TWO = ParallelSizes(2)
FILE = "state-rank-1-part-00001.safetensors"


def loaded(path: Path, place: RankPlace, weights: str = "auto") -> tuple[list[torch.Tensor], list[type]]:
    """The weights of a rank, and what computes with them."""
    model = load_stage(path, torch.float32, CPU, place, transform=transform_for(weights, False, CPU))
    return list(model.tensors()), [type(getattr(*place)) for part in model.parts for place in part.products()]


def same(origin: Path, state: Path, weights: str, parts: ParallelSizes) -> None:
    """Of every rank."""
    for place in RankPlace.all(parts):
        (ours, kinds), (theirs, asked) = loaded(state, place), loaded(origin, place, weights)
        assert kinds == asked and len(ours) == len(theirs) and all(map(torch.equal, ours, theirs)), place


DENSE: dict[str, Callable[[Path], Path]] = {
    "llama": lambda path: write_checkpoint(path),
    "tied": lambda path: write_checkpoint(path, "qwen2", tie_word_embeddings=True),
    "merged": lambda path: write_family("gpt2", path),
    "experts": lambda path: write_family("gpt-oss", path),
    "recurrent": lambda path: write_case("qwen 3.5 moe", path),
    "latent": lambda path: write_case("deepseek v3", path),
}


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Models, each written once."""
    place = tmp_path_factory.mktemp("models")
    return lambda name: place / name if (place / name).exists() else DENSE[name](place / name)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "name, weights, parts",
    [
        ("llama", "auto", TWO),
        ("llama", "int8", TWO),
        ("llama", "int4", ParallelSizes(4)),
        ("llama", "int4", ParallelSizes(1, 3)),
        ("tied", "auto", ParallelSizes(2, 2)),
        ("tied", "int4", TWO),
        ("tied", "int8", ParallelSizes(2, 2)),
        ("merged", "int4", TWO),
        ("recurrent", "int8", TWO),
        ("latent", "int4", TWO),
        ("latent", "nvfp4", ParallelSizes(1, 2)),
        ("experts", "auto", TWO),
        ("experts", "int4", ParallelSizes(2, 2)),
        ("experts", "int4", ParallelSizes(2, 1, True)),
        ("experts", "auto", ParallelSizes(2, 1, True, 1)),
    ],
    ids=str,
)
def test_the_bits_of_cutting_while_loading(
    name: str, weights: str, parts: ParallelSizes, origins: Any, tmp_path: Path
) -> None:
    origin = origins(name)
    report = shard(origin, tmp_path / "state", weights, parts=parts)
    assert report.ranks == parts.ranks and bool(report.packed) == (weights != "auto")
    require_state(tmp_path / "state", parts)
    same(origin, tmp_path / "state", weights, parts)


@pytest.mark.parametrize("name", ["awq", "int8"])
def test_few_bits_that_a_checkpoint_brings(name: str, tmp_path: Path) -> None:
    origin, _ = write(tmp_path, *FORMATS[name])
    report = shard(origin, tmp_path / "state", parts=TWO)
    assert sum(report.packed.values()) == 24 and report.dense == 2, "the head comes dense"
    same(origin, tmp_path / "state", "auto", TWO)


def test_a_calibration_writes_what_ranks_take(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"tensor_parallel=2, weights='int4_gptq'\): no calibration .*sgl quantize MODEL OUT --weights "
        r"int4_gptq --calibration FILE, and open OUT with tensor_parallel=2$",
    ):
        EngineConfig.from_options({"tensor_parallel": 2, "weights": "int4_gptq", "calibration": ["x"]})
    with pytest.raises(ConfigError, match=r"activations='maximum'\): .*leave activations at 'dynamic'"):
        EngineConfig.from_options(
            {"pipeline_parallel": 2, "weights": "fp8", "activations": "maximum", "calibration": ["x"]}
        )
    origin, out, work = (
        write_checkpoint(tmp_path / "m", intermediate_size=128),
        tmp_path / "out",
        [(Row(list(range(40, 60))), 20)],
    )
    quantize(origin, out, "int4_gptq", calibration=[np.array(text) for text in drawn(6, 80)])
    expected, found = Rig(out).step(work, every_row=True), steps_of_ranks(out, 2, [[(Row(list(range(40, 60))), 20)]])[0]
    assert (found - expected).norm() < 0.06 * expected.norm(), "each rank rounds its own states"
    shard(out, tmp_path / "state", parts=TWO)
    same(out, tmp_path / "state", "auto", TWO)


def test_scales_of_keys_of_a_later_stage(tmp_path: Path) -> None:
    origin, parts = written(tmp_path / "m", scales(WRITERS["ModelOpt"], LAYERS)), ParallelSizes(1, 2)
    shard(origin, tmp_path / "state", "int8", parts=parts)
    found = [load_stage(tmp_path / "state", torch.float32, CPU, place).kv_scales for place in RankPlace.all(parts)]
    assert sum(found, ()) == tuple(LAYERS) and all(found)


@pytest.mark.parametrize("weights, whole", [("int4", None), ("int8", ExpertParallelSplit())])
def test_logits(weights: str, whole: ExpertParallelSplit | None, origins: Any, tmp_path: Path) -> None:
    origin, work = origins("experts"), [[(Row(list(range(40, 60))), 20)]]
    shard(origin, tmp_path / "state", weights, parts=ParallelSizes(2, 1, whole is not None))
    (ours,), (asked,) = (
        steps_of_ranks(path, 2, work, whole=whole, transform=transform)
        for path, transform in ((tmp_path / "state", None), (origin, transform_for(weights, False, CPU)))
    )
    assert torch.equal(ours, asked)


@pytest.fixture(scope="module")
def state(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `tiny`, for two ranks."""
    path = tmp_path_factory.mktemp("states") / "state"
    shard(tiny, path, "int4", parts=TWO)
    return path


@pytest.mark.whole
def test_an_engine_of_ranks(state: Path, tiny: Path, tmp_path: Path) -> None:
    """It writes what ranks write that cut and quantise; it takes other weights, and these again."""
    shard(tiny, tmp_path / "dense", parts=TWO)
    prompts = drawn(3, 30)
    with Engine(state, **OPTIONS, tensor_parallel=2, load_format="sharded_state") as engine:
        texts = written_by(engine, prompts)
        assert texts == greedy(tiny, prompts, texts) and "packed int4" in engine.info()["few_bits"][0]
        engine.update_weights(tmp_path / "dense")
        assert (dense := written_by(engine, prompts)) != texts and not engine.info()["few_bits"]
        with pytest.raises(ConfigError, match=r"for tensor_parallel=1, .*--ranks 2"):
            engine.update_weights(one_rank(tiny, tmp_path))
        assert written_by(engine, prompts) == dense
        engine.update_weights(state)
        assert written_by(engine, prompts) == texts
    assert dense == greedy(tiny, prompts, dense, "auto")


def greedy(origin: Path, prompts: list[list[int]], texts: list[list[int]], weights: str = "int4") -> list[list[int]]:
    """What two ranks of the model find most likely, token by token of these texts."""
    work = [[(Row(prompt + text), len(prompt + text))] for prompt, text in zip(prompts, texts, strict=True)]
    logits = steps_of_ranks(origin, 2, work, transform=transform_for(weights, False, CPU))
    return [each[len(prompt) - 1 : -1].argmax(1).tolist() for each, prompt in zip(logits, prompts, strict=True)]


def one_rank(tiny: Path, tmp_path: Path) -> Path:
    shard(tiny, tmp_path / "one")
    return tmp_path / "one"


@pytest.fixture(autouse=True)
def nobody_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; an engine of ranks is in another."""
    monkeypatch.setattr("sgl.runtime.build.build_stages.RankGroup", None)


def started(path: Path, **options: Any) -> None:
    """An engine of ranks, to where its ranks would be started."""
    build_engine(path, EngineConfig.from_options(OPTIONS | options), lambda error: None)


@pytest.mark.parametrize(
    "options, words",
    [
        (
            {"tensor_parallel": 4},
            r"is a sharded state for tensor_parallel=2, the engine has tensor_parallel=4: .*sgl shard MODEL OUT "
            r"--ranks 4$",
        ),
        (
            {"pipeline_parallel": 2},
            r"for tensor_parallel=2, the engine has tensor_parallel=1, pipeline_parallel=2: .*--ranks 1 --stages 2$",
        ),
        ({"tensor_parallel": 2, "pipeline_parallel": 2}, r"--ranks 2 --stages 2$"),
        ({"pipeline_parallel": 10**15}, r"--ranks 1 --stages 1000000000000000$"),
    ],
)
def test_an_engine_of_other_ranks_is_told_what_to_do(options: dict[str, int], words: str, state: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        started(state, **options)


@pytest.mark.parametrize("options", [{"weights": "int4"}, {"deterministic": True}], ids=str)
def test_weights_that_would_be_changed_are_refused_before_a_rank_starts(options: dict[str, Any], state: Path) -> None:
    asked = {"tensor_parallel": 2} | options
    with pytest.raises(ConfigError, match="has its weights packed as they were written: leave weights at 'auto'"):
        started(state, **asked)
    assert "packed as they were written" in str(estimate_memory(state, EngineConfig.from_options(asked)).files.problem)


def test_one_rank_and_several_are_not_taken_for_each_other(
    state: Path, tiny: Path, origins: Any, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"for tensor_parallel=2, the engine has tensor_parallel=1: open it with tensor_parallel=2, or "
        r".*--ranks 1$",
    ):
        load_model(state)
    with pytest.raises(ConfigError, match=r"for tensor_parallel=1, the engine has tensor_parallel=2: .*--ranks 2$"):
        started(one_rank(tiny, tmp_path), tensor_parallel=2)
    with pytest.raises(ConfigError, match=rf"has no {MANIFEST}: it is no sharded state"):
        started(tiny, tensor_parallel=2, load_format="sharded_state")
    shard(origins("experts"), tmp_path / "experts", parts=ParallelSizes(2, 1, True, 1))
    assert {
        str(way.options) for way in read(tmp_path / "experts", EngineConfig(), 2, 10**10).ways if way.refused is None
    } == {"{'tensor_parallel': 2, 'expert_parallel': True, 'redundant_experts': 1}"}
    with pytest.raises(
        ConfigError,
        match=r"for tensor_parallel=2, expert_parallel=True, redundant_experts=1, .*--ranks 2 --expert-parallel$",
    ):
        require_state(tmp_path / "experts", ParallelSizes(2, 1, True))


@pytest.mark.parametrize(
    "parts, words",
    [
        (ParallelSizes(3), r"tensor_parallel=3.*query heads cannot be shared out among 3 ranks"),
        (ParallelSizes(1, 4), "3 layers can be cut into 3 stages at most"),
        (ParallelSizes(0), "whole and positive"),
        (ParallelSizes(2, -1), "whole and positive"),
        (ParallelSizes(2**16, 2), r"with 65,536 ranks in all at most, here \(65536, 2\)"),
        (ParallelSizes(1, 1, True), "whole experts are spread over the ranks"),
        (ParallelSizes(2, 2, True), "without stages"),
        (ParallelSizes(2, 1, True), "it has no experts"),
        (ParallelSizes(2, 1, False, 1), "take expert_parallel as well"),
    ],
    ids=str,
)
def test_parts_that_there_are_not_are_refused_by_name(
    parts: ParallelSizes, words: str, tiny: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        shard(tiny, tmp_path / "out", parts=parts)
    assert not list(tmp_path.iterdir())


def test_what_has_no_cut_is_refused_by_name(tmp_path: Path) -> None:
    few, _ = write(tmp_path / "few", *FORMATS["gptq"])
    for origin, words in (
        (write_case("jamba", tmp_path / "jamba"), r"tensor_parallel=2\): Jamba.*layer 0"),
        (few, r"o_proj in GPTQ.*desc_act.*take fewer ranks"),
    ):
        with pytest.raises(ConfigError, match=words):
            shard(origin, tmp_path / "out", parts=TWO)
        assert not (tmp_path / "out").exists() and not (tmp_path / "out.part").exists()


Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]
BLOCKS = "packed.1.0.blocks"
LIES: dict[str, tuple[Change, str]] = {  # of the manifest, and of rank 1's file, whose size is told as it is then
    "version": (lambda said, tensors: said.update(version=2), "is of version 2, version 3 is read"),
    **{
        f"{value} ranks": (lambda said, tensors, value=value: said.update(tensor_parallel=value), "whole and positive")
        for value in (0, -2, True, 2.0, "2", None, 10**30)
    },
    "more ranks": (lambda said, tensors: said.update(tensor_parallel=3), "ranks must be a list of 3"),
    "stages": (lambda said, tensors: said.update(pipeline_parallel=2), "ranks must be a list of 4"),
    "other stages": (
        lambda said, tensors: said.update(pipeline_parallel=2, tensor_parallel=1),
        "is a sharded state for tensor_parallel=1, pipeline_parallel=2",
    ),
    "experts": (lambda said, tensors: said.update(expert_parallel=1), "expert_parallel and redundant_experts are"),
    "copies": (lambda said, tensors: said.update(redundant_experts=-1), "expert_parallel and redundant_experts are"),
    "no list": (lambda said, tensors: said.update(ranks={"0": said["ranks"][0]}), "ranks must be a list"),
    "fewer": (lambda said, tensors: said["ranks"].pop(), "ranks must be a list"),
    "no object": (lambda said, tensors: said["ranks"].__setitem__(1, [1]), "of rank 1 are None and None"),
    "no files": (lambda said, tensors: said["ranks"][1].update(files={}), "of rank 1 are"),
    "another's files": (
        lambda said, tensors: said["ranks"][1].update(files=said["ranks"][0]["files"]),
        f"rank 1 has .*, which is called {FILE}",
    ),
    "elsewhere": (lambda said, tensors: said["ranks"][1].update(files={f"../{FILE}": 1}), "which is called"),
    "absent": (
        lambda said, tensors: said["ranks"][1]["files"].update({FILE.replace("1.safe", "2.safe"): 1}),
        "lacks state-rank-1-part-00002.safetensors",
    ),
    "no size": (lambda said, tensors: said["ranks"][1]["files"].update({FILE: True}), "of True bytes"),
    "size": (
        lambda said, tensors: said["ranks"][0]["files"].update({FILE.replace("rank-1", "rank-0"): 7}),
        rf"rank-0-part-00001.safetensors has .* bytes, {MANIFEST} says 7",
    ),
    "kind": (lambda said, tensors: said["ranks"][1]["packed"]["1.0"].update(kind="int3"), "known kinds: int4"),
    "no kind": (lambda said, tensors: said["ranks"][1]["packed"]["1.0"].update(kind=["int4"]), "known kinds: int4"),
    "group": (
        lambda said, tensors: said["ranks"][1]["packed"]["1.0"]["numbers"].update(group=24),
        "its numbers cannot be",
    ),
    "dense instead": (lambda said, tensors: said["ranks"][1]["packed"].pop("1.0"), "has no place"),
    "no such layer": (
        lambda said, tensors: said["ranks"][1]["packed"].update({"9.0": said["ranks"][1]["packed"]["1.0"]}),
        r"has a packed projection '9\.0'",
    ),
    "missing": (lambda said, tensors: tensors.pop(BLOCKS), "it is missing"),
    "uncut": (lambda said, tensors: tensors.update({BLOCKS: torch.cat([tensors[BLOCKS]] * 2)}), "blocks must be U8"),
    "norm": (lambda said, tensors: tensors.pop("model.layers.1.input_layernorm.weight"), "lacks 1 of"),
    "more": (
        lambda said, tensors: tensors.update({"model.layers.0.self_attn.o_proj.weight": torch.ones(64, 64)}),
        "has no place",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_found_before_a_rank_takes_memory(
    name: str, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, words = LIES[name]
    path = spoiled(state, tmp_path, 1, change)
    monkeypatch.setattr(Decoder, "allocate", None)
    with pytest.raises(ConfigError, match=words):
        require_state(path, TWO)


def test_damaged_files_of_another_rank_are_found_before_it_starts(state: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(state, tmp_path / "spoiled"))
    header = bytearray((path / FILE).read_bytes())
    header[9] ^= 0xFF
    (path / FILE).write_bytes(header)
    with pytest.raises(CheckpointError, match=rf"{FILE} .* is damaged or cut short"):
        started(path, tensor_parallel=2)
    (path / FILE).write_bytes(header[:-1])
    with pytest.raises(CheckpointError, match=rf"{FILE} has .* bytes, {MANIFEST} says .*copy it again"):
        started(path, tensor_parallel=2)
    (path / FILE).unlink()
    with pytest.raises(CheckpointError, match=rf"lacks {FILE}"):
        started(path, tensor_parallel=2)
    assert estimate_memory(path, EngineConfig(tensor_parallel=2)).files.problem is not None


def test_ranks_whose_files_were_exchanged_are_told(state: Path, tmp_path: Path) -> None:
    """Their tensors have the same names and shapes."""
    path, other = Path(shutil.copytree(state, tmp_path / "spoiled")), FILE.replace("rank-1", "rank-0")
    shutil.copy(state / other, path / FILE)
    with pytest.raises(CheckpointError, match=rf"{FILE} says that it is of rank '0': .*copy it again"):
        started(path, tensor_parallel=2)
    shutil.copy(state / FILE, path / other)
    with pytest.raises(CheckpointError, match=rf"{other} says that it is of rank '1'"):
        loaded(path, RankPlace.all(TWO)[0])


def test_what_the_tools_say(tiny: Path, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", str(tiny), str(tmp_path / "out"), "--weights", "int4", "--ranks", "2"]) == 0
    assert "ranks        2, for Engine(tensor_parallel=2)\nprojections  24 of int4" in capsys.readouterr().out
    assert read_manifest(tmp_path / "out") == read_manifest(state) and read_manifest(state).parts == TWO != WHOLE
    found = estimate_memory(state, EngineConfig(tensor_parallel=2))
    assert found.files.problem is None and found.files.count == 2
    assert "for tensor_parallel=2, the engine has tensor_parallel=1" in str(
        estimate_memory(state, EngineConfig()).files.problem
    )
    assert {
        way.refused is None for way in read(state, EngineConfig(), 2, 10**10).ways if (way.tensor, way.stages) == (2, 1)
    } == {True}
    assert main(["shard", str(tiny), str(tmp_path / "more"), "--ranks", "2", "--stages", "2", "--expert-parallel"]) == 1
    assert (
        "sgl shard MODEL OUT --ranks 2 --stages 2 --expert-parallel: whole experts are spread"
        in capsys.readouterr().err
    )
    assert main(["push", str(state), "redis://127.0.0.1:1/model"]) == 1
    assert "is a sharded state, which is opened where its files are; push the model" in capsys.readouterr().err
    for tool in ("shard", "quantize"):
        assert main([tool, str(tiny), str(tmp_path / "more"), "--device", "tpu"]) == 1
        assert "device='tpu' is not a device name; use auto, cpu, cuda or cuda:N" in capsys.readouterr().err


def test_files_are_ended_where_a_rank_ends(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no rank reads another's."""
    monkeypatch.setattr("sgl.runtime.calibration.shard_writer.SHARD", 50_000)
    shard(tiny, tmp_path / "state", "int8", parts=TWO)
    shares = read_manifest(tmp_path / "state").shares
    assert all(len(share.files) > 2 for share in shares) and not {*shares[0].files} & {*shares[1].files}
    for name in shares[0].files:
        size = (tmp_path / "state" / name).stat().st_size
        (tmp_path / "state" / name).write_bytes(bytes(size))
    place = RankPlace.all(TWO)[1]
    assert all(map(torch.equal, loaded(tmp_path / "state", place)[0], loaded(tiny, place, "int8")[0]))
    edit_json(tmp_path / "state" / MANIFEST, version=1)
    with pytest.raises(CheckpointError, match="write it again with `sgl shard`"):
        load_model(tmp_path / "state")

"""`sgl models --gpus` and the links that `sgl doctor` shows: sizes against what
ranks really hold, the choice, what is refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from family_cases import write_family
from family_checks import reference
from loaded_models import load_share, load_stage

from sgl.cli import main
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.build.sharding_plan import best_plan, read, sharding_plans
from sgl.runtime.executor.ranks.gpu_topology import grouped, matrix, sums
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.parallel.ep.expert_parallel_split import ExpertParallelSplit
from sgl.runtime.parallel.pp.pipeline_stages import RankPlace
from sgl.runtime.parallel.tp.tensor_parallel_split import TensorParallelSplit

CONFIGS = json.loads((Path(__file__).parent / "published_configs.json").read_text())
TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tNV18\tSYS\t0-31\t0
GPU1\tNV18\t X \tNV18\tSYS\t0-31\t0
GPU2\tNV18\tNV18\t X \tPIX\t0-31\t0
GPU3\tSYS\tSYS\tPIX\t X \t0-31\t0

Legend:
  X    = Self
"""


def spread(path: Path, cards: int, gigabytes: float, context: int = 4096, **options):
    model = open_checkpoint(path, weights=False).model
    return sharding_plans(
        model, EngineConfig.from_options(options), cards, int(gigabytes * 1e9), torch.bfloat16, context
    )


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["Llama-3.1-8B"]["config"]))
    return tmp_path


@pytest.mark.parametrize("tensor, stages", [(1, 1), (2, 1), (1, 2), (1, 3), (2, 2)])
def test_sizes_are_those_of_the_fullest_rank(tensor: int, stages: int, tiny: Path) -> None:
    way = next(way for way in spread(tiny, tensor * stages, 80) if (way.tensor, way.stages) == (tensor, stages))
    ranks = [
        load_stage(tiny, torch.bfloat16, torch.device("cpu"), RankPlace.of(rank, tensor * stages, stages))
        for rank in range(tensor * stages)
    ]
    # the numbers of norms are counted as if in bfloat16, and a cut head beside a whole table not at all
    assert way.weights == pytest.approx(max(2 * model.parameter_count for model in ranks), rel=0.02)
    assert way.kv_token == max(model.config.attention.bytes_per_slot(torch.bfloat16) for model in ranks)


def test_a_model_that_fits_a_card_is_copied(llama: Path) -> None:
    found = spread(llama, 4, 80)
    assert best_plan(found).options == {"replicas": 4}
    one = found[0]
    assert 16.0e9 < one.weights < 16.2e9 and one.kv_token == 131_072 and 350_000 < one.tokens < 450_000 and one.fits
    halves = next(way for way in found if (way.replicas, way.tensor) == (1, 4))
    assert one.weights / 3 > halves.weights > one.weights / 4 and halves.kv_token == one.kv_token / 4


def test_nothing_is_taken_that_the_engine_refuses_or_that_does_not_fit(llama: Path) -> None:
    small = spread(llama, 2, 12)
    assert small[0].tokens == 0 and not small[0].fits
    assert all(way.refused is None or "Engine(" in way.refused for way in small)
    taken = best_plan(small)
    assert taken is None or (taken.refused is None and taken.tokens > 0)
    assert best_plan(spread(llama, 1, 4)) is None


@pytest.mark.parametrize("cards", [2, 3, 4])
def test_whole_experts_on_cards_are_told_and_not_taken_where_parts_of_them_do_as_well(
    cards: int, tmp_path: Path
) -> None:
    sizes = {
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "intermediate_size": 96,
        "head_dim": 16,
        "num_local_experts": 5,
    }
    reference("MixtralForCausalLM", **sizes).save_pretrained(tmp_path)
    found = [way for way in spread(tmp_path, cards, 80) if way.experts]
    assert [way.options for way in found] == [
        {
            **({"replicas": cards // tensor} if cards > tensor else {}),
            "tensor_parallel": tensor,
            "expert_parallel": True,
        }
        for tensor in (2, 3, 4)
        if cards % tensor == 0
    ]
    assert all(way.refused is None for way in found) and not best_plan(spread(tmp_path, cards, 80)).experts
    held = [
        load_share(
            tmp_path, torch.bfloat16, torch.device("cpu"), TensorParallelSplit(rank, cards, ExpertParallelSplit())
        ).parameter_count
        for rank in range(cards)
    ]
    assert found[-1].weights == pytest.approx(2 * max(held), rel=0.02)


def test_latent_attention_by_rows_is_told_with_what_is_whole_on_each_card(tmp_path: Path) -> None:
    path = write_family("deepseek v3", tmp_path)
    found = spread(path, 2, 80)
    by_rows = [way for way in found if way.rows]
    assert [way.options for way in by_rows] == [
        {"tensor_parallel": 2, **more, "latent_attention": "rows"} for more in ({}, {"expert_parallel": True})
    ] and not best_plan(found).rows
    held = load_share(path, torch.bfloat16, torch.device("cpu"), TensorParallelSplit(0, 2, rows=True)).parameter_count
    assert by_rows[0].refused is None and by_rows[0].weights == pytest.approx(2 * held, rel=0.02)
    assert by_rows[0].weights > next(way for way in found if way.options == {"tensor_parallel": 2}).weights
    three = next(way for way in spread(path, 3, 80) if way.rows and not way.experts)
    assert "inner width" in three.refused, "of heads there are 4, which need not divide"


def test_quantised_experts_are_not_spread_whole_over_cards(tmp_path: Path) -> None:
    told = []
    for left_out in ("", "quantization_config"):
        config = {name: value for name, value in CONFIGS["gpt-oss-20b"]["config"].items() if name != left_out}
        (tmp_path / "config.json").write_text(json.dumps(config))
        told += [
            way.refused for way in read(tmp_path, EngineConfig.from_options({}), 2, 80 * 10**9).ways if way.experts
        ]
    few, plain = told
    assert "tensor_parallel=2, expert_parallel=True): quantised experts are not whole" in few and plain is None


def test_what_does_not_divide_is_told(llama: Path) -> None:
    (llama / "config.json").write_text(json.dumps(CONFIGS["Llama-3.1-8B"]["config"] | {"num_hidden_layers": 2}))
    refused = {(way.tensor, way.stages): way.refused or "" for way in spread(llama, 3, 80)}
    assert (
        "32 query heads cannot be shared out among 3 ranks" in refused[3, 1]
        and "cut into 2 stages at most" in refused[1, 3]
    )


def test_the_command_tells_it(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", str(tiny), "--gpus", "2", "--gpu-memory", "24"]) == 0
    told = capsys.readouterr().out
    assert "replicas=2" in told and "tokens in each engine" in told and told.rstrip().endswith("replicas=2")
    assert main(["models", str(tiny), "--gpus", "2", "--gpu-memory", "24", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"] == {"replicas": 2}


@pytest.mark.parametrize(
    "words, why",
    [
        (["--gpus", "0", "--gpu-memory", "8"], "--gpus 0"),
        (["--gpus", "2", "--gpu-memory", "-1"], "--gpu-memory -1"),
        (["--gpu-memory", "8"], "needs --gpus"),
        (["replicas=2", "--gpus", "2", "--gpu-memory", "8"], "leave tensor_parallel"),
    ],
)
def test_what_makes_no_sense_is_an_error(
    words: list[str], why: str, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", str(tiny), *words]) == 1
    assert why in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are cards here")
def test_without_cards_their_size_must_be_said(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", str(tiny), "--gpus", "2"]) == 1
    assert "this machine has 0" in capsys.readouterr().err
    main(["doctor"])
    assert "no GPU" in capsys.readouterr().out


def test_links_are_read_from_the_table() -> None:
    pairs = matrix(TOPOLOGY)
    assert (
        len(pairs) == 6
        and pairs[0, 1] == "NVLink, 18 links"
        and pairs[2, 3] == "PCIe, one bridge"
        and pairs[0, 3].startswith("PCIe, between")
    )
    assert list(grouped(pairs)) == [
        "NVLink, 18 links: 0-1, 0-2, 1-2",
        "PCIe, between NUMA nodes: 0-3, 1-3",
        "PCIe, one bridge: 2-3",
    ]
    assert list(grouped({(0, 1): "x"})) == ["x: all pairs"] and matrix("nothing") == {}


def test_how_ranks_would_add_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: {a, b} != {2, 3})
    assert list(sums(5)) == [
        "tensor_parallel=2, all-reduce: pushed up to 8192 KB, then NCCL",
        "tensor_parallel=4, all-reduce: NCCL, as GPU 2 does not reach the memory of GPU 3",
    ]
    assert not list(sums(1))

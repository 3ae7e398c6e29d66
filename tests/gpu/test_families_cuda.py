"""Families and parts on a GPU against the law on the CPU: step by step, and as
text of an engine with and without graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

import layer_checks as checks  # noqa: E402
from checkpoints import write_tokenizer  # noqa: E402
from family_cases import FAMILIES, GEMMA4, write_family  # noqa: E402
from family_checks import prompt  # noqa: E402
from part_models import CHOOSING, MODELS, LawRig, PartsRig  # noqa: E402
from rig import Rig, Row  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from sgl.runtime import Engine, SamplingParams  # noqa: E402
from sgl.runtime.models import decoder  # noqa: E402

LENGTHS, NEW = (1, 3, 17, 40), 16
ENGINES: list[dict[str, Any]] = [{}, {"graphs": False, "page_size": 16, "step_tokens": 16}]
SPOKEN = [
    "gemma2, low caps",
    "gemma3",
    "olmo2",
    "glm4",
    "cohere, norms of heads",
    "cohere2",
    "ministral3",
    "smollm3",
    "exaone4",
    "granite",
    "hunyuan",
    "helium",
    "nemotron",
    "apertus",
    "stablelm, parallel",
    "starcoder2, window",
    "nanochat",
    "gpt2",
    "gptj",
    "gpt_neox",
    "deepseek v3.2",
    "glm 5, shared",
    "opt",
    "opt-350m",
    "phi",
    "persimmon",
    "bloom",
    "falcon-40b",
    "gemma4, shared keys, wide",
    "gemma4, without embeddings of layers",
]


@pytest.fixture(params=FAMILIES | GEMMA4)
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_family(request.param, tmp_path)


def law_of(path: Path) -> Rig:
    rig = Rig(path, attention="torch_native")
    rig.model.step = None
    return rig


def by_reference(make: Callable[[], Rig], monkeypatch: pytest.MonkeyPatch) -> Rig:
    """The same on the GPU by torch's operations."""
    with monkeypatch.context() as patch:
        patch.setattr(decoder, "_can_fuse", lambda model: False)
        return make()


def check_half(law: Rig, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding is that of the law in the same type."""
    usual = max(checks.errors(law, by_reference(make, monkeypatch)))
    found = max(checks.errors(law, make()))
    assert found < 1.5 * usual + 0.01, f"{found}, of the law {usual}"


def test_a_family_in_float32(family: Path) -> None:
    rig = checks.FusedRig(family, device="cuda", attention="torch_native")
    assert rig.model.fused
    checks.check_decoder(law_of(family), rig, 1e-4)


def test_a_family_in_half(family: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16, or with experts in float16: there one rounding seldom chooses another expert."""
    dtype = torch.float16 if "experts" in (family / "config.json").read_text() else torch.bfloat16
    check_half(
        law_of(family), lambda: checks.FusedRig(family, dtype, device="cuda", attention="torch_native"), monkeypatch
    )


@pytest.mark.parametrize("name", MODELS)
def test_parts_in_float32(name: str) -> None:
    checks.check_decoder(LawRig(MODELS[name]), PartsRig(MODELS[name], device="cuda"), 5e-5)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in CHOOSING])
def test_parts_in_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_half(LawRig(MODELS[name]), lambda: PartsRig(MODELS[name], torch.bfloat16, "cuda"), monkeypatch)


def texts_of_the_law(path: Path, prompts: list[list[int]]) -> list[list[int]]:
    rig, texts = law_of(path), []
    known = Tokenizer.from_file(
        str(path / "tokenizer.json")
    ).get_vocab_size()  # an engine gives no token without a text
    for tokens in prompts:
        row = Row(tokens)
        for _ in range(NEW):
            row.tokens.append(int(rig.step([(row, row.pending)])[0, :known].argmax()))
        texts.append(row.tokens[len(tokens) :])
        rig.release(row)
    return texts


def texts_of(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    params = SamplingParams(max_tokens=NEW, temperature=0, ignore_eos=True)
    sequences = [engine.open() for _ in prompts]
    for sequence, tokens in zip(sequences, prompts, strict=True):
        sequence.extend(tokens)
    futures = [sequence.generate(params) for sequence in sequences]
    return [future.result(120).token_ids for future in futures]


@pytest.mark.parametrize("case", SPOKEN)
def test_greedy_text_is_that_of_the_law(case: str, tmp_path: Path) -> None:
    """Cold and eager, then from the cache and as graphs, together and one by one."""
    path = write_family(case, tmp_path)
    write_tokenizer(path)
    prompts = [prompt(320, length, seed=length) for length in LENGTHS]
    expected = texts_of_the_law(path, prompts)
    for options in ENGINES:
        with Engine(path, device="cuda", dtype="float32", kv_tokens=2048, **options) as engine:
            for _ in range(3):
                assert texts_of(engine, prompts) == expected, options
            assert texts_of(engine, prompts[2:3]) == expected[2:3], options


@pytest.mark.parametrize(
    "case, by", [("gemma3", "fused"), ("olmo2", "fused"), ("gpt_neox", "fused"), ("apertus", "torch")]
)
def test_a_graph_has_the_bits_of_the_eager_step(case: str, by: str, tmp_path: Path) -> None:
    """In bfloat16, where another kernel would be another text: a lone decode eagerly, captured, and replayed."""
    path = write_family(case, tmp_path)
    write_tokenizer(path)
    with Engine(path, device="cuda", dtype="bfloat16", kv_tokens=2048) as engine:
        found = []
        for _ in range(4):
            engine.flush_cache()
            found.append(texts_of(engine, [prompt(320, 1, seed=5)]))
        assert all(texts == found[0] for texts in found)
        assert {row["executor"] for row in engine.info()["layers"]} == {by}
        runner = engine._core.runner
        assert any(runner._graphs._captured.values())
        assert (runner._mixed is None) == (by == "torch")


def test_scores_and_embeddings_of_a_mixed_model(tmp_path: Path) -> None:
    """What is pooled and scored by a model whose layers run by the law is what the CPU gives."""
    path = write_family("apertus", tmp_path)
    write_tokenizer(path)
    found = []
    for device in ("cpu", "cuda"):
        with Engine(path, device=device, dtype="float32", kv_tokens=2048) as engine:
            sequence = engine.open()
            sequence.extend(prompt(320, 30))
            scores = sequence.score([[7, 8], [7, 9, 10], [11]]).result(60)
            found.append(([p for row in scores for p, _ in row], torch.tensor(engine.embed(["one", "two words"]))))
    assert torch.allclose(torch.tensor(found[0][0]), torch.tensor(found[1][0]), atol=1e-4)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-4)

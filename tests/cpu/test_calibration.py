"""`Engine(calibration=...)`: what is given flows through the layers while they
are quantised, in whatever form it is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rig import Rig, Row

import sgl
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.calibration import CalibrationTransform, RecordedText, given
from sgl.runtime.errors import ConfigError
from sgl.runtime.layers import float8_reference as values
from sgl.runtime.layers.linear_layers import Linear
from sgl.runtime.loading import load_model
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.quantization import CalibratedTransform, Fp8Linear, calibrated_for, transform_for
from sgl.runtime.quantization.calibration_statistics import InputMagnitudes
from sgl.runtime.quantization.deterministic_linear import FixedBatchLinear
from sgl.runtime.quantization.fp8_linear import StaticFp8Linear
from sgl.runtime.text.tokenizer import Tokenizer

CPU = torch.device("cpu")
FIXED = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
TEXTS = ["The quick brown fox jumps over the lazy dog. " * 4, "one two three four five six seven " * 5]
CHAT = [{"role": "user", "content": "Which day?"}, {"role": "assistant", "content": "Monday."}]
OPTIONS: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_tokens": 2048}


def ids(path: Path, texts: list[str]) -> list[np.ndarray]:
    tokenizer = Tokenizer.load(path)
    return [tokenizer.encode(text, special_prefix=True) for text in texts]


def quantised(
    path: Path,
    texts: list[np.ndarray],
    weights: str = "int4_gptq",
    activations: str = "dynamic",
    deterministic: bool = False,
) -> Decoder:
    found = calibrated_for(weights, activations, deterministic, CPU)
    assert found is not None
    return load_model(
        path, torch.float32, transform=CalibrationTransform(found.quantise, lambda: texts, seen=found.seen)
    )


def weights_of(model: Decoder) -> list[torch.Tensor]:
    return [getattr(*place).weight for block in model.layers for place in block.products()]


@pytest.fixture
def opened(tiny: Path) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def build(**options: Any) -> Engine:
        engines.append(Engine(tiny, **OPTIONS, **options))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


# what is given


def test_an_engine_is_quantised_by_its_texts(tiny: Path, opened: Callable[..., Engine]) -> None:
    engine = opened(weights="int4_gptq", calibration=TEXTS)
    found, expected = engine._core.runner.model, quantised(tiny, ids(tiny, TEXTS))
    assert all(torch.equal(a, b) for a, b in zip(weights_of(found), weights_of(expected), strict=True))
    other = weights_of(quantised(tiny, ids(tiny, TEXTS[:1])))
    assert not all(torch.equal(a, b) for a, b in zip(weights_of(found), other, strict=True))
    assert (
        engine.config.calibration == "2 texts" and engine.info()["weights"] == "int4_gptq"
    )  # options are shown, texts are not
    assert len(engine.generate("lazy", max_tokens=3, ignore_eos=True).token_ids) == 3


def test_other_weights_are_quantised_by_the_same_texts(tiny: Path, opened: Callable[..., Engine]) -> None:
    engine = opened(weights="int4_gptq", calibration=TEXTS)
    before = [weight.clone() for weight in weights_of(engine._core.runner.model)]
    engine.update_weights(tiny)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(engine._core.runner.model), before, strict=True))


def test_texts_are_lists_files_and_conversations(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXTS[0])
    (tmp_path / "b.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n" + json.dumps(TEXTS[1]) + "\n")
    never: Any = None
    assert given(str(tmp_path / "a.txt"), never) == [TEXTS[0]]
    assert given(tmp_path / "b.jsonl", never) == [CHAT, TEXTS[1]]
    assert given([TEXTS[0], CHAT, [3, 4]], never) == [TEXTS[0], CHAT, [3, 4]]
    assert given([np.array([3, 4], np.int32)], never) == [[3, 4]]
    assert given(lambda engine: engine, lambda function: [function([5])]) == [[5]]


@sgl.function
def ask(s: Any, question: str) -> None:
    s += "Q: " + question + " A:"
    s += sgl.gen("answer", max_tokens=4, ignore_eos=True)
    s += sgl.select("sure", choices=[" yes", " no"])


@pytest.mark.whole
@pytest.mark.parametrize("process", [False, True])
def test_a_program_runs_on_the_model_as_it_was(process: bool, tiny: Path, opened: Callable[..., Engine]) -> None:
    def asked(engine: Engine) -> Any:
        assert engine.config.weights == "auto" and engine.config.process == process
        return [ask.run(question, backend=engine, temperature=0) for question in ("lazy?", "quick?")]

    engine = opened(weights="int4_gptq", calibration=asked, process=process)
    assert engine.config.calibration == "2 texts"
    if not process:
        with Engine(tiny, **OPTIONS) as plain, plain.record() as runs:
            states = asked(plain)
            texts = [state.text() for state in states]
        assert {plain.tokenizer.decode(run.tokens) for run in runs} == set(texts)
        answers = {plain.tokenizer.decode(run.tokens[start:stop]) for run in runs for start, stop in run.answers}
        assert answers == {state["answer"] for state in states}
        expected = weights_of(quantised(tiny, [np.array(run.tokens, np.int32) for run in runs]))
        assert all(torch.equal(a, b) for a, b in zip(weights_of(engine._core.runner.model), expected, strict=True))


def test_texts_of_an_engine_are_recorded_without_what_others_begin_with(opened: Callable[..., Engine]) -> None:
    engine = opened()
    before = engine.open()
    before.extend([5, 6])
    with engine.record() as texts:
        row = engine.open()
        row.extend([7, 8, 9])
        forks = row.fork(2)
        forks[0].extend([10])
        forks[1].extend([11])
        assert forks[0].tokens().tolist() == [7, 8, 9, 10] and forks[1].tokens().tolist() == [7, 8, 9, 11]
        row.close()
        forks[1].close()
        engine.check()
    assert [text.tokens for text in texts] == [(5, 6), (7, 8, 9, 10), (7, 8, 9, 11)]
    with engine.record() as nothing:
        pass
    assert [text.tokens for text in nothing] == [(5, 6), (7, 8, 9, 10)]  # of those that go on


def test_answers_are_known_in_forks_and_when_they_are_cut(opened: Callable[..., Engine]) -> None:
    engine = opened()
    with engine.record() as texts:
        row = engine.open()
        row.extend([7, 8])
        first = row.generate(FIXED).result().token_ids
        fork = row.fork(1)[0]
        row.extend([9], drop=1)
        second = row.generate(FIXED).result().token_ids
        fork.extend([10], drop=3)
        fork.tokens()
    assert set(texts) == {RecordedText((7, 8, *first[:2], 9, *second), ((2, 4), (5, 8))), RecordedText((7, 8, 10), ())}


@pytest.mark.parametrize(
    "options, says",
    [
        ({"weights": "int4_gptq"}, r"weights='int4_gptq'\) .* give calibration=\[...\]"),
        ({"weights": "fp8", "activations": "maximum"}, r"activations='maximum'\) .* give calibration="),
        ({"weights": "int4", "calibration": TEXTS}, "nothing uses it with weights='int4'"),
        ({"calibration": TEXTS}, "nothing uses it with weights='auto'"),
        (
            {"activations": "maximum", "weights": "int8", "calibration": TEXTS},
            "is for the products of weights='fp8', here: weights='int8'",
        ),
        ({"activations": "percentil"}, "must be dynamic, maximum or percentile"),
        ({"weights": "int4_gptq", "calibration": "the quick fox"}, r"no such file; .* calibration=\[text\]"),
        ({"weights": "int4_gptq", "calibration": []}, "the list is empty; give at least one text"),
        ({"weights": "int4_gptq", "calibration": ["a", 5]}, "text 2: 5 is no text"),
        ({"weights": "int4_gptq", "calibration": 5}, r"calibration=5\): must be a list"),
        ({"weights": "int4_gptq", "calibration": lambda engine: None}, "the engine compute nothing"),
        ({"weights": "int4_gptq", "calibration": [[2**20]]}, "token ids run from 0 to"),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, Any], says: str, opened: Callable[..., Engine]) -> None:
    with pytest.raises(ConfigError, match=says):
        opened(**options)


def test_without_texts_the_transform_is_not_to_be_had() -> None:
    with pytest.raises(ConfigError, match="needs texts to calibrate by"):
        transform_for("int4_gptq", False, CPU)
    with pytest.raises(ConfigError, match="deterministic=True"):
        calibrated_for("fp8", "maximum", True, CPU)
    assert calibrated_for("fp8", "dynamic", False, CPU) is None


def test_products_of_a_fixed_number_of_rows(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgl.runtime.quantization.online_quantization.keep_quantized", lambda codes, layer: "not here")
    model = quantised(tiny, ids(tiny, TEXTS), deterministic=True)
    assert all(isinstance(getattr(*place), FixedBatchLinear) for block in model.layers for place in block.products())


# ranges of activations


@pytest.mark.parametrize("activations, percent", [("maximum", 100.0), ("percentile", 99.99)])
def test_ranges_are_those_of_what_flows_through(activations: str, percent: float, tiny: Path) -> None:
    rows: list[torch.Tensor] = []
    found = calibrated_for("fp8", activations, False, CPU)
    assert isinstance(found, CalibratedTransform) and found.seen is InputMagnitudes

    def first(name: str, layer: Linear, seen: InputMagnitudes | None) -> Linear:
        rows.append(layer.weight.clone())
        return found.quantise(name, layer, seen)

    texts = ids(tiny, TEXTS)
    model = load_model(tiny, torch.float32, transform=CalibrationTransform(first, lambda: texts, seen=InputMagnitudes))
    rig = Rig(tiny)
    block = model.layers[0]
    x = torch.cat(
        [
            block.before_mixer(rig.model.embedding(torch.from_numpy(text.astype(np.int64)), torch.arange(len(text))))
            for text in texts
        ]
    )
    seen = InputMagnitudes(x.shape[1], CPU)
    seen.add(x)
    product = block.mixer.qkv
    assert isinstance(product, StaticFp8Linear)
    scale = float(product.scale_of_x)
    assert scale * values.LARGEST == pytest.approx(seen.percentile(percent), rel=2**-7)
    assert type(model.head.product) is not StaticFp8Linear
    plain = Fp8Linear.of(Linear(rows[0]))
    expected = (
        values.restore(values.saturate(x, scale), scale, torch.float32)
        @ (plain.weight.float() * plain.scale[:, None]).t()
    )
    torch.testing.assert_close(product(x), expected, rtol=1e-4, atol=1e-4)


def test_static_ranges_lose_as_little_as_those_of_each_row(tiny: Path) -> None:
    rigs = [Rig(tiny), Rig(tiny), Rig(tiny)]
    rigs[1].model = quantised(tiny, ids(tiny, TEXTS), "fp8", "maximum")
    rigs[2].model = load_model(tiny, transform=transform_for("fp8", False, CPU))
    tokens = ids(tiny, TEXTS)[0].tolist()
    p, static, dynamic = (rig.step([(Row(tokens), len(tokens))], every_row=True).log_softmax(-1) for rig in rigs)
    losses = [float((p.exp() * (p - q)).sum(-1).mean()) for q in (static, dynamic)]
    assert 1e-7 < losses[0] < 3 * losses[1]

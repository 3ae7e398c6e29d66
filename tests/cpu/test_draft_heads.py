"""Heads on the target's states guess what a slow oracle guesses, change no text, and lose no page."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import edit_json
from draft_heads import KINDS, LAYERS, Made, eagle, eagle3, mtp
from safetensors.torch import load_file, save_file
from test_quantized_loading import FORMATS

from sgl.grammars import compile_regex
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import CheckpointError, ConfigError, RequestAborted
from sgl.runtime.loading import load_model
from sgl.runtime.loading.draft_head_files import EAGLE, kind_of, open_mtp_head
from sgl.runtime.sequences.draft_tokens import DraftTokens
from sgl.runtime.sequences.sequence_state import ScheduledWork, SequenceState
from sgl.runtime.speculative.draft_head_state import DraftHeadStates

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "threads": 1,
    "kv_tokens": 4096,
    "device": "cpu",
    "speculation": "auto",
    "poison_freed": True,
}


def opened_with(made: Made, **options: Any) -> Engine:
    """Nothing else drafts, every draft is taken, and pages are checked after each step."""
    engine = Engine(made.target, **OPTIONS | {"draft": made.draft} | options)
    found = engine._core.life.speculation
    assert found is not None and found.model is not None
    model = found.model
    found.drafters, found.control, model.timing.control = [], None, None

    def check() -> None:
        engine._core.check()
        model.draft_states.check()

    engine._core.after_step = check
    return engine


def drafter(engine: Engine) -> Any:
    found = engine._core.life.speculation
    assert found is not None
    return found.model


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return KINDS[request.param](tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module")
def drafting(made: Made) -> Iterator[Engine]:
    with opened_with(made, deterministic=True) as engine:
        yield engine


def prompt(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(4, 300) for _ in range(length)]


def sequence_of(engine: Engine, tokens: list[int]) -> Any:
    sequence = engine.open()
    sequence.extend(tokens)
    return sequence


@pytest.mark.few(3)
@pytest.mark.parametrize("deterministic", [False, True], ids=["compiled", "deterministic"])
def test_it_guesses_what_the_oracle_guesses(made: Made, deterministic: bool) -> None:
    """In steps of several prompts and chunks, from the first token of a text on."""
    seen: list[tuple[list[int], list[int]]] = []
    with opened_with(made, step_tokens=48, deterministic=deterministic) as engine:
        model, propose = drafter(engine), drafter(engine).propose

        def watched(work: Any, wanting: Any) -> dict[Any, DraftTokens]:
            found: dict[Any, DraftTokens] = propose(work, wanting)
            seen.extend((seq.tokens.array.tolist(), list(draft.tokens)) for seq, draft in found.items())
            return found

        model.propose = watched
        futures = [
            sequence_of(engine, prompt(seed, 20 + 30 * seed)).generate(
                SamplingParams(max_tokens=12, seed=seed, ignore_eos=True)
            )
            for seed in range(4)
        ]
        for future in futures:
            future.result(60)
    assert len(seen) >= 20
    for tokens, draft in seen[::3]:
        for place, token in enumerate(draft[:4]):
            logits = made.logits(tokens, draft[:place])[
                : 315 if made.ids is None else None
            ]  # as many as the tokenizer has
            column = token if made.ids is None else made.ids.tolist().index(token)
            assert logits[column] >= logits.max() - 2e-3, (tokens, draft, place)


@pytest.mark.few(3)
def test_the_text_is_the_text_without(made: Made, drafting: Engine) -> None:
    """Prompts with cached beginnings, forks, cuts and aborts; any parameters, and a grammar."""
    texts = []
    options = {**OPTIONS, "speculation": False}
    deterministic = drafting.config.deterministic
    with Engine(made.target, **options | {"deterministic": deterministic}) as plain:
        for engine in (plain, drafting):
            grammar = compile_regex(r"[a-z]{3,9}( [a-z0-9]{2,5}){1,4}\.", engine.vocabulary)
            first, futures, doomed = prompt(1, 40), [], []
            for number in range(12):
                kind: dict[str, Any] = [
                    {"temperature": 0.0},
                    {"temperature": 1.0, "top_p": 0.9},
                    {"temperature": 0.0, "repetition_penalty": 1.3},
                ][number % 3]
                sequence = sequence_of(engine, first[: 10 + 5 * (number % 4)] + prompt(number, 5))
                params = SamplingParams(max_tokens=14, seed=number, error_on_truncation=False, **kind)
                futures.append(sequence.generate(params, grammar if number % 4 == 1 else None))
                for child in sequence.fork(2 if number % 5 == 0 else 0):
                    futures.append(child.generate(SamplingParams(max_tokens=8, seed=number)))
                if number % 6 == 2:
                    sequence.extend(prompt(number, 3), drop=2)
                    futures.append(sequence.generate(SamplingParams(max_tokens=6, temperature=0)))
                if number % 6 == 4:
                    other = sequence_of(engine, prompt(number, 9))
                    doomed.append(other.generate(SamplingParams(max_tokens=300, ignore_eos=True)))
                    other.abort()
            texts.append([(future.result(60).text, future.result(60).token_ids) for future in futures])
            for future in doomed:
                with pytest.raises(RequestAborted):
                    future.result(60)
    assert texts[0] == texts[1]
    assert drafting.stats().drafted_tokens > 0
    drafting.flush_cache()
    cache = drafter(drafting).draft_states.cache
    assert drafting._core.call(lambda: cache.pool.free) == cache.pool.total


def test_what_it_takes_is_told(made: Made, drafting: Engine) -> None:
    told = drafting.info()["draft"]
    assert told["kind"] in ("EAGLE", "EAGLE-3", "MTP") and told["kv_tokens"] == 4096
    assert told["kv_bytes"] > 0 and told["weight_bytes"] >= 4 * told["parameters"] > 0


def test_a_cached_beginning_is_known_to_the_head_too(tmp_path: Path) -> None:
    made, tokens, lengths = eagle3(tmp_path), prompt(3, 60), []
    with opened_with(made) as engine:
        model, forward = drafter(engine), drafter(engine).runner.forward
        for end in (prompt(4, 5), prompt(5, 5)):
            del lengths[:]
            model.runner.forward = lambda work: lengths.extend(item.hi - item.lo for item in work) or forward(work)
            sequence_of(engine, tokens + end).generate(
                SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
            ).result(60)
        assert max(lengths) <= 8 and set(model.draft_states._start.values()) == {0}
        sequence_of(engine, prompt(6, 50)).prefill().result(60)
        sequence_of(engine, prompt(6, 50) + [9]).generate(
            SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)
        ).result(60)
        assert max(model.draft_states._start.values()) == 50, "where the target's states begin"


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    three, one = eagle3(tmp_path / "a"), eagle(tmp_path / "b")
    embedding = {
        "embed_tokens.weight": load_file(Path(three.draft) / "model.safetensors")["fc.weight"].new_zeros(320, 64)
    }

    def edited(made: Made, tensors: Any = None, **config: Any) -> Engine:
        file, weights = Path(made.draft) / "config.json", Path(made.draft) / "model.safetensors"
        before, stored = file.read_text(), weights.read_bytes()
        try:
            file.write_text(json.dumps(json.loads(before) | config))
            if tensors is not None:
                save_file(tensors(load_file(weights)), weights, {"format": "pt"})
            return Engine(made.target, **OPTIONS | {"draft": made.draft})
        finally:
            file.write_text(before)
            weights.write_bytes(stored)

    for made, config, words in (
        (three, {"num_hidden_layers": 2}, "a head of 2 layers"),
        (three, {"target_hidden_size": 128}, "states of 128 numbers, LlamaForCausalLM has 64"),
        (
            three,
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, LAYERS]}},
            r"three layers in rising order, here \[1, 2, 8\] of a target with 7",
        ),
        (three, {"draft_vocab_size": 91}, r"holds (F32|I64) \[90(, 64)?\]; the EAGLE-3 head asks for \[91"),
        (three, {"eagle_aux_hidden_state_layer_ids": 5}, "is 5; it must be a list of whole numbers"),
        (three, {"eagle_aux_hidden_state_layer_ids": [0, 1, 1.5, 4]}, "must be a list of whole numbers"),
        (three, {"norm_output": True}, "key 'norm_output'"),
        (three, {"parallel_drafting": True}, "parallel_drafting=True guesses several tokens in one step"),
        (three, {"use_aux_hidden_state": False}, "use_aux_hidden_state is false"),
        (three, {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false"),
        (three, {"eagle_config": {"layers": [1]}}, "eagle_config is .*may be an object with"),
        (three, {"eagle_config": {"use_mtp_layernorm": True}}, "eagle_config is .*may be an object with"),
        (three, {"fc_bias": True}, r"fc_bias is True, and the head has no tensor fc\.bias"),
        (one, {"hidden_size": 128}, "hidden_size=128"),
    ):
        with pytest.raises(ConfigError, match=words):
            edited(made, **config)
    edited(
        three,
        eagle_config={
            "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
            "parallel_draft_step": 1,
        },
    ).close()
    with pytest.raises(CheckpointError, match=r"lacks fc\.weight"):
        edited(three, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "fc.weight"})
    with pytest.raises(ConfigError, match="tie_word_embeddings is true"):
        edited(
            three,
            lambda tensors: embedding | {name: each for name, each in tensors.items() if name != "lm_head.weight"},
            tie_word_embeddings=True,
        )
    with pytest.raises(CheckpointError, match="d2t leads to tokens outside the target's vocabulary of 320"):
        edited(three, lambda tensors: tensors | {"d2t": tensors["d2t"] + 300})
    with pytest.raises(CheckpointError, match="'more' has no place in an EAGLE-3 head"):
        edited(three, lambda tensors: tensors | {"more": tensors["fc.weight"].clone()})
    with pytest.raises(ConfigError, match=r"has no model\.layers\.7\.eh_proj\.weight"):
        Engine(one.target, **OPTIONS | {"draft": "mtp"})
    weights = Path(one.draft) / "model.safetensors"
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    with pytest.raises(CheckpointError, match="read with load_format='pt'"):
        Engine(one.target, **OPTIONS | {"draft": one.draft})
    assert kind_of(Path(one.draft), "pt") == EAGLE and kind_of(Path(one.draft), "auto", weights=False) is None


@pytest.mark.few(1)
def test_pages_are_short_and_memory_is_given_away(made: Made) -> None:
    """Preempted, put to sleep, with other weights, and with pages of several tokens."""
    prompts, params = (
        [prompt(seed, 30) for seed in range(6)],
        SamplingParams(max_tokens=40, temperature=0, ignore_eos=True),
    )
    with Engine(made.target, **OPTIONS | {"speculation": False, "deterministic": True}) as plain:
        wanted = [sequence_of(plain, tokens).generate(params).result(60).token_ids for tokens in prompts]
    with opened_with(made, kv_tokens=160, deterministic=True) as engine:
        futures = [sequence_of(engine, tokens).generate(params) for tokens in prompts]
        assert [future.result(60).token_ids for future in futures] == wanted and engine.stats().preemptions
        assert engine.sleep() == engine.info()["kv_bytes"] + engine.info()["draft"]["kv_bytes"]
        engine.wake()
        assert sequence_of(engine, prompts[0]).generate(params).result(60).token_ids == wanted[0]
        engine.update_weights(made.target)
        assert sequence_of(engine, prompts[1]).generate(params).result(60).token_ids == wanted[1]
    with opened_with(made, page_size=16, deterministic=True) as engine:
        futures = [sequence_of(engine, tokens).generate(params) for tokens in prompts]
        assert [future.result(60).token_ids for future in futures] == wanted and engine.stats().drafted_tokens > 100


def test_dummy_weights(made: Made) -> None:
    options = OPTIONS | {"draft": made.draft, "dummy": True}
    if made.draft == "mtp":
        with pytest.raises(ConfigError, match="with dummy=True no file says"):
            Engine(made.target, **options)
        return
    with Engine(made.target, **options) as engine:
        sequence_of(engine, prompt(1, 20)).generate(SamplingParams(max_tokens=20, ignore_eos=True)).result(60)
        assert engine.stats().drafted_tokens


def test_states_are_of_the_tokens_that_stand_there_now() -> None:
    """A text was cut and written anew, with what others had computed of it: states of
    the old tokens are not taken for the new ones'.
    """
    shadows = DraftHeadStates.__new__(DraftHeadStates)
    shadows._states, shadows._round = {}, 1
    seq, rows = SequenceState(3), torch.arange(40.0)[:, None]
    seq.tokens.extend(list(range(10, 30)))
    shadows._observe([ScheduledWork(seq, 0, 12)], rows[:12])
    seq.tokens.truncate(6)
    seq.tokens.extend([7] * 9)
    assert shadows._states[3].of(seq.tokens.array).end == 6
    shadows._observe([ScheduledWork(seq, 9, 11)], rows[20:22])
    found = shadows._states[3]
    assert found.first == 9 and found.rows[:, 0].tolist() == [20, 21] and found.tokens.tolist() == [7, 7]
    shadows._observe([ScheduledWork(seq, 11, 12)], rows[30:31])
    assert shadows._states[3].first == 9 and shadows._states[3].rows[:, 0].tolist() == [20, 21, 30]
    shadows._observe([ScheduledWork(seq, 12, 13)], torch.zeros(500, 1))
    assert shadows._states[3].rows.untyped_storage().nbytes() < 64, "of a step's states only its own are held"


@pytest.mark.parametrize("form", ["fp8 blocks", "fp8 outputs"])
def test_a_layer_in_few_bits_is_restored(form: str, tmp_path: Path) -> None:
    """As DeepSeek-V3 comes. What it guesses with is the dense twin."""
    made, (method, writer) = mtp(tmp_path), FORMATS[form]
    few, twin = tmp_path / "few", tmp_path / "twin"
    tensors, generator = load_file(made.target / "model.safetensors"), torch.Generator().manual_seed(1)
    dense = dict(tensors)
    for name in [name for name in tensors if name.endswith("proj.weight") and "eh_proj" not in name]:
        stored, means = writer(tensors.pop(name), generator)
        tensors |= {name.removesuffix("weight") + suffix: tensor.contiguous() for suffix, tensor in stored.items()}
        dense[name] = means.dense()
    for path, found in ((few, tensors), (twin, dense)):
        shutil.copytree(made.target, path)
        save_file(found, path / "model.safetensors", {"format": "pt"})
    edit_json(few / "config.json", quantization_config=method)
    target = load_model(twin, torch.float32)
    ours, asked = (
        [*open_mtp_head(path, target.config, "auto").load(target, torch.float32, torch.device("cpu"), None).tensors()]
        for path in (few, twin)
    )
    assert len(ours) == len(asked) and all(torch.equal(mine, theirs) for mine, theirs in zip(ours, asked, strict=True))
    with (
        Engine(few, **OPTIONS | {"draft": "mtp", "speculation": {"control": False}}) as engine,
        Engine(few, **OPTIONS | {"speculation": False}) as plain,
    ):
        texts = [
            each.generate("a b c", max_tokens=24, temperature=0, ignore_eos=True).token_ids for each in (engine, plain)
        ]
        assert texts[0] == texts[1] and engine.stats().drafted_tokens > 0
    save_file(
        {
            name: tensor
            for name, tensor in tensors.items()
            if not name.endswith(("3.self_attn.o_proj.weight_scale_inv", "3.self_attn.o_proj.weight_scale"))
        },
        few / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(CheckpointError, match="o_proj"):
        open_mtp_head(few, target.config, "auto").load(target, torch.float32, torch.device("cpu"), None)

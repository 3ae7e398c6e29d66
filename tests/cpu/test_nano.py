"""The bundled model: its files keep their limits, and it is what transformers reads from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sgl
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.engine import NANO
from sgl.runtime.nano import nano_prompts

TALK = [nano_prompts.message("system", nano_prompts.CHAT_TASK), nano_prompts.message("user", "Hello, what can you do?")]


@pytest.fixture(scope="module")
def nano():
    with Engine(dtype="float32", kv_tokens=8192) as engine:
        yield engine


def test_sizes(nano):
    shards = list(Path(NANO).glob("*.safetensors"))
    assert nano.info()["parameters"] <= 16_000_000
    assert sum(shard.stat().st_size for shard in shards) <= 32_000_000
    assert all(shard.stat().st_size <= 15_000_000 for shard in shards)


def test_the_chat_template_writes_what_the_prompts_module_writes(nano):
    assert nano.tokenizer.render_chat(TALK) == nano_prompts.render(TALK)
    assert nano.tokenizer.render_chat(TALK, add_generation_prompt=True) == nano_prompts.render(TALK) + "<|assistant|>"


def test_greedy_text_and_logits_equal_transformers(nano):
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32).eval()
    text = nano_prompts.render(TALK) + "<|assistant|>"
    ids = nano.tokenizer.encode(text, special_prefix=True).tolist()
    sequence = nano.open()
    sequence.extend(ids)
    found = [value for value, _ in sequence.logprobs(1).result(60)[0]]
    with torch.no_grad():
        logprobs = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
        every = torch.ones(1, len(ids))  # the start token is also the padding token: not to be masked
        options = {
            "do_sample": False,
            "max_new_tokens": 24,
            "min_new_tokens": 24,
            "pad_token_id": 0,
            "eos_token_id": None,
        }
        out = reference.generate(torch.tensor([ids]), attention_mask=every, **options)
    assert torch.allclose(torch.tensor(found), logprobs[torch.arange(len(ids) - 1), ids[1:]], atol=1e-3)
    done = sequence.generate(SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)).result(60)
    assert done.token_ids == out[0, len(ids) :].tolist()


def test_nothing_at_all_gives_the_bundled_model():
    @sgl.function
    def ask(s):
        s += sgl.user("Hello!")
        s += sgl.assistant(sgl.gen("answer", max_tokens=8, temperature=0))

    assert ask.run()["answer"]
    assert Path(sgl.get_server_info()["model_path"]) == Path(NANO)

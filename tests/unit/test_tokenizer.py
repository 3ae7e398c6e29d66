"""Tokenizer: prefixes, segments, special tokens, token bytes, chat templates."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_tokenizers as tiny
from hypothesis import given
from hypothesis import strategies as st

from sgl.runtime.errors import ConfigError
from sgl.runtime.text.tokenizer import Tokenizer

EXACT = [
    pytest.param(tiny.byte_level(), id="byte-level"),
    pytest.param(tiny.byte_level(bos=True), id="byte-level-bos"),
    pytest.param(tiny.metaspace(), id="prepend"),
    pytest.param(tiny.metaspace("metaspace"), id="metaspace"),
    pytest.param(tiny.metaspace("none"), id="no-prepend"),
]

texts = st.text(  # without the mark that sentencepiece puts for a space, which it cannot tell from one
    alphabet=st.one_of(
        st.sampled_from(" \n\t.,a bcstopé日👍\u200d"), st.characters(codec="utf-8", exclude_characters="▁")
    )
)


@pytest.mark.few(2)
@pytest.mark.parametrize("tokenizer", EXACT)
def test_long_texts_hold_no_other_thread_up(tokenizer: Tokenizer) -> None:
    text, turns, done = "a bcst opé日 " * 20_000, 0, threading.Event()
    encoding = threading.Thread(target=lambda: (tokenizer.encode(text), done.set()))
    encoding.start()
    while not done.wait(0.0005):
        turns += 1
    encoding.join()
    assert turns > 20
    head = "a bcst opé日 " * 30  # encoded in the other way
    assert tokenizer.encode(text)[: len(tokenizer.encode(head)) - 3].tolist() == tokenizer.encode(head)[:-3].tolist()


@pytest.mark.parametrize("tokenizer", EXACT)
@given(segments=st.lists(texts, max_size=4))
def test_segments_encoded_apart_decode_to_their_sum(tokenizer: Tokenizer, segments: list[str]) -> None:
    ids = [tokenizer.encode(text, parse_special=False) for text in segments]
    joined = np.concatenate([np.zeros(0, np.int32), *ids])
    assert joined.dtype == np.int32
    assert tokenizer.decode(joined, skip_special_tokens=False) == "".join(segments)


@pytest.mark.parametrize("tokenizer", EXACT)
@given(text=texts)
def test_a_text_from_its_start_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, special_prefix=True, parse_special=False)
    assert tuple(ids[: len(tokenizer.prefix_ids)]) == tokenizer.prefix_ids
    if tokenizer is tiny.metaspace("metaspace"):  # takes a leading space for the dummy one, in the library too
        text = text.removeprefix(" ")
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("tokenizer", EXACT)
@given(text=texts)
def test_the_start_is_encoded_as_the_library_does(tokenizer: Tokenizer, text: str) -> None:
    expected = tokenizer._backend.encode(text, add_special_tokens=True).ids
    assert tokenizer.encode(text, special_prefix=True).tolist() == expected


def test_prefixes() -> None:
    assert tiny.byte_level().prefix_ids == ()
    assert tiny.byte_level(bos=True).prefix_ids == (0,)
    assert tiny.metaspace().prefix_ids == (1,)


@pytest.mark.parametrize("tokenizer", [tiny.byte_level(bos=True), tiny.metaspace()])
def test_bos_is_not_doubled(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<s>Hello", special_prefix=True).tolist()
    assert ids.count(tokenizer.bos_id) == 1
    assert ids[0] == tokenizer.bos_id
    assert tokenizer.bos_id not in tokenizer.encode("Hello").tolist()


@pytest.mark.parametrize("tokenizer", EXACT)
def test_special_strings_are_text_or_tokens(tokenizer: Tokenizer) -> None:
    text = "a<|im_start|>b</s>"
    parsed, plain = tokenizer.encode(text), tokenizer.encode(text, parse_special=False)
    assert tokenizer.token_id("<|im_start|>") in parsed.tolist()
    assert not tokenizer.special_ids & set(plain.tolist())
    assert tokenizer.decode(plain) == text
    assert tokenizer.decode(parsed) == "ab"
    assert tokenizer.decode(parsed, skip_special_tokens=False) == text


@pytest.mark.parametrize("tokenizer", EXACT)
def test_token_bytes_are_what_the_library_decodes(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.token_bytes) == tokenizer.vocab_size
    anchor = tokenizer.encode("x").tolist()
    for index, token in enumerate(tokenizer.token_bytes):
        whole = tokenizer._backend.decode([*anchor, index], skip_special_tokens=False)
        if b"\xff" not in token and "�" not in whole:
            assert whole.encode() == b"x" + token


def test_unused_ids_have_no_bytes() -> None:
    spec = json.loads(tiny.byte_level_backend())
    spec["added_tokens"].append({**spec["added_tokens"][-1], "id": 650, "content": "<late>"})
    tokenizer = tiny.build(json.dumps(spec))
    late = tokenizer.token_id("<late>")
    assert late is not None and tokenizer.token_bytes[late] == b"<late>"
    assert all(tokenizer.token_bytes[i] == b"" for i in range(602, late))


def test_inexact_vocabulary_says_so() -> None:
    tokenizer = tiny.wordpiece()
    assert not tokenizer.exact_bytes
    assert tokenizer.decode(tokenizer.encode("the quick fox")) == "the quick fox"


def test_eos_ids_are_merged(tmp_path: Path) -> None:
    folder = tiny.write(
        tmp_path,
        tiny.byte_level_backend(),
        generation_config={"eos_token_id": [3, 1]},
        config={"eos_token_id": 2, "bos_token_id": 0},
    )
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.eos_ids == (3, 1, 2)
    assert tokenizer.bos_id == 0


def test_an_eos_id_that_is_none_is_named(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path, tiny.byte_level_backend(), config={"eos_token_id": "</s>"})
    with pytest.raises(
        ConfigError,
        match=r"config\.json: key 'eos_token_id' must be a token id below 1,048,576 or a list of them, not '</s>'",
    ):
        Tokenizer.load(folder)


def test_eos_from_the_special_tokens_map(tmp_path: Path) -> None:
    folder = tiny.write(
        tmp_path,
        tiny.byte_level_backend(),
        tokenizer_config={"eos_token": None},
        special_tokens_map={"eos_token": "<|im_end|>"},
    )
    assert Tokenizer.load(folder).eos_ids == (3,)


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def test_chat_template_like_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tiny.write(tmp_path, tiny.byte_level_backend())
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(str(folder))
    ours = Tokenizer.load(folder)
    for prompt in (False, True):
        expected = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=prompt)
        assert ours.render_chat(MESSAGES, add_generation_prompt=prompt) == expected


def test_template_file_wins_and_helpers_work(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path, tiny.byte_level_backend())
    source = "{% generation %}{{ messages | tojson }}{% endgeneration %}{{ strftime_now('%%') }}{{ tools[0] }}"
    (folder / "chat_template.jinja").write_text(source)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.chat_template == source
    assert tokenizer.render_chat([{"a": "é<"}], tools=["t"]) == '[{"a": "é<"}]%t'


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.mro() }}", "refuses"),
    ],
)
def test_template_refusals(source: str, message: str) -> None:
    config: dict[str, Any] = tiny.CONFIG | {"chat_template": source}
    tokenizer = Tokenizer(tiny.Backend.from_str(tiny.byte_level_backend()), config)
    with pytest.raises(ConfigError, match=message):
        tokenizer.render_chat(MESSAGES)


def test_template_that_does_not_compile() -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        Tokenizer(tiny.Backend.from_str(tiny.byte_level_backend()), {"chat_template": "{% if %}"})


def test_many_threads_at_once() -> None:
    tokenizer = tiny.build(tiny.metaspace_backend())
    expected = (tokenizer.encode("a <s> b").tolist(), tokenizer.render_chat(MESSAGES))
    tokenizer = tiny.build(tiny.metaspace_backend())
    wrong: list[object] = []

    def work() -> None:
        for _ in range(20):
            found = (tokenizer.encode("a <s> b").tolist(), tokenizer.render_chat(MESSAGES))
            if found != expected:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_prefix_is_found_without_the_letter_a() -> None:
    vocab = {"<s>": 0, "7": 1, "8": 2}
    backend = tiny.Backend(tiny.models.BPE(vocab, []))
    backend.decoder = tiny.decoders.Fuse()
    backend.add_special_tokens(["<s>"])
    backend.post_processor = tiny.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    assert Tokenizer(backend, {}).prefix_ids == (0,)

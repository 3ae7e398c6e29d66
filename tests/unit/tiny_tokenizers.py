"""Small tokenizers, trained on the spot: byte-level BPE, and sentencepiece-like BPE with byte fallback."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from sgl.runtime.text.tokenizer import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. 0123456789, 3.14 and 42!",
    '{"name": "John Smith", "age": 31, "tags": ["red", "green"], "address": {"city": "Berlin", "zip": null}}',
    '{"name":"Ada","age":36,"ok":true,"items":[{"id":1,"price":9.99},{"id":2,"price":0.5}],"note":""}',
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n",
    "naïve café, größer, 日本語のテキスト, 中文字符, emoji 👍🏽 👩‍👩‍👧‍👦 and more 🎉🎉",
    "Answer: Yes. Question: No. STOP stop stops stopping ### END\n\n",
] * 3

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "{{ '<|im_start|>' + message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}"
)

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


@cache
def byte_level_backend(vocab_size: int = 600, bos: bool = False) -> str:
    """tokenizer.json text."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    if bos:
        backend.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)]),
            ]
        )
    backend.add_tokens([AddedToken("    ", normalized=False), AddedToken("<tool>", normalized=False)])
    return backend.to_str()


@cache
def metaspace_backend(vocab_size: int = 700, prepend: str = "normalizer") -> str:
    """tokenizer.json text as converted Llama-2 tokenizers have it.

    prepend: "normalizer" (a Prepend normalizer), "metaspace" (a Metaspace pre-tokenizer) or "none".
    """
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    corpus = [text.replace(" ", "▁") for text in CORPUS if text.isascii()]
    backend = Backend(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>", *SPECIALS, *bytes_], show_progress=False
    )
    backend.train_from_iterator(corpus, trainer)
    spec: dict[str, Any] = json.loads(backend.to_str())
    spec["added_tokens"] = [e for e in spec["added_tokens"] if e["content"] not in set(bytes_)]
    backend = Backend.from_str(json.dumps(spec))
    if prepend == "metaspace":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        replace = normalizers.Replace(" ", "▁")
        parts = [normalizers.Prepend("▁"), replace] if prepend == "normalizer" else [replace]
        backend.normalizer = normalizers.Sequence(parts)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend.to_str()


@cache
def wordpiece_backend() -> str:
    """A vocabulary whose decoding looks at neighbouring tokens."""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    backend.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]"], show_progress=False)
    )
    return backend.to_str()


CONFIG: dict[str, Any] = {
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
    "chat_template": CHAT_TEMPLATE,
}


def build(spec: str) -> Tokenizer:
    """A Tokenizer from tokenizer.json text and the shared config."""
    return Tokenizer(Backend.from_str(spec), CONFIG)


@cache
def byte_level(vocab_size: int = 600, bos: bool = False) -> Tokenizer:
    return build(byte_level_backend(vocab_size, bos))


@cache
def metaspace(prepend: str = "normalizer") -> Tokenizer:
    return build(metaspace_backend(prepend=prepend))


@cache
def wordpiece() -> Tokenizer:
    return build(wordpiece_backend())


def write(folder: Path, spec: str, **files: dict[str, Any]) -> Path:
    """A model directory with tokenizer.json, tokenizer_config.json and the given JSON files by stem."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(spec, encoding="utf-8")
    for stem, content in ({"tokenizer_config": CONFIG} | files).items():
        (folder / f"{stem}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder

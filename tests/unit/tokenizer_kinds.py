"""Model directories with a tiny tokenizer of every kind that decoder families use."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import tiny_tokenizers as tiny
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|padding|>"]
MORE_SPECIALS = ["<bos>", "<eos>", "<pad>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TokenizerKind(NamedTuple):
    """write: puts the files into a folder. composes: texts become NFC. lossy: texts do not come back as they were."""

    name: str
    write: Callable[[Path], None]
    composes: bool = False
    lossy: bool = False
    library: bool = True


def bpe(
    pre: Any, normalizer: Any = None, post: Any = None, added: tuple[AddedToken, ...] = (), ignore_merges: bool = False
) -> Backend:
    """Byte-level BPE behind any cutting into words."""
    backend = Backend(models.BPE())
    backend.normalizer, backend.pre_tokenizer, backend.decoder = normalizer, pre, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(tiny.CORPUS, trainer)
    if post is not None:
        backend.post_processor = post
    if ignore_merges:
        backend.model.ignore_merges = True
    backend.add_tokens(list(added))
    return backend


def bos(token: str = "<s>", index: int = 1) -> Any:
    return processors.TemplateProcessing(single=f"{token} $A", special_tokens=[(token, index)])


def words(pattern: str) -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(use_regex=False)])


def byte_level(use_regex: bool = True, prefix: bool = False) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)


@cache
def spaced_bpe() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Words and merges of a BPE over texts whose spaces are "▁"."""
    backend = Backend(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False)
    backend.train_from_iterator([text.replace(" ", "▁") for text in tiny.CORPUS] + ["▁▁", "▁▁▁▁"] * 9, trainer)
    model = json.loads(backend.to_str())["model"]
    merges = tuple((left, right) for left, right in model["merges"])
    merged = {left + right: None for left, right in merges}
    chars = [word for word in model["vocab"] if len(word) == 1]
    return (*merged, *chars), merges


def spaced(
    normalizer: Any, pre: Any, strip: bool, first: list[str], post: Any, added: tuple[AddedToken, ...] = ()
) -> Backend:
    """BPE with byte fallback, as sentencepiece models are converted."""
    pieces, merges = spaced_bpe()
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = {word: i for i, word in enumerate([*first, *bytes_, *pieces])}
    backend = Backend(models.BPE(vocab, list(merges), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer, backend.pre_tokenizer = normalizer, pre
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    backend.post_processor = post
    backend.add_special_tokens([AddedToken(word, normalized=False) for word in first])
    backend.add_tokens(list(added))
    return backend


def unigram(byte_fallback: bool, pre: Any, normalizer: Any = None, decoder: Any = None) -> Backend:
    scored = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *unigram_pieces()]
    if byte_fallback:
        scored += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    backend = Backend(models.Unigram(scored, unk_id=0, byte_fallback=byte_fallback))
    backend.normalizer, backend.pre_tokenizer = normalizer, pre
    backend.decoder = decoder or decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens([AddedToken(word, normalized=False) for word in ("<unk>", "<s>", "</s>")])
    return backend


@cache
def unigram_pieces() -> tuple[tuple[str, float], ...]:
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    trainer = trainers.UnigramTrainer(vocab_size=300, show_progress=False, unk_token="<unk>", special_tokens=["<unk>"])
    backend.train_from_iterator(tiny.CORPUS, trainer)
    return tuple((piece, score) for piece, score in json.loads(backend.to_str())["model"]["vocab"] if piece != "<unk>")


# folders


def saved(backend: Callable[[], Backend], model_type: str, **config: Any) -> Callable[[Path], None]:
    """tokenizer.json with a config beside it."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        backend().save(str(folder / "tokenizer.json"))
        write_configs(folder, model_type, config)

    return write


def write_configs(folder: Path, model_type: str, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def vocab_and_merges(model_type: str, normalizer: Any = None, **config: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_configs(folder, model_type, config)
        model = json.loads(bpe(byte_level(), normalizer).to_str())["model"]
        (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
        (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]))

    return write


def tiktoken_file(name: str, model_type: str, size: int = 0, **config: Any) -> Callable[[Path], None]:
    """A rank file; `added_tokens_decoder` begins behind its ranks."""

    def write(folder: Path) -> None:
        write_configs(folder, model_type, config)
        (folder / name).write_bytes(
            b"".join(b"%s %d\n" % (base64.b64encode(token), i) for i, token in enumerate(ranked()))
        )

    return write


def tekken(folder: Path) -> None:
    """As Mistral writes byte-level BPE."""
    write_configs(folder, "mistral", {})
    specials = [
        {"rank": i, "token_str": text, "is_control": True}
        for i, text in enumerate(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    ]
    words = [
        {"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for i, token in enumerate(ranked())
    ]
    size = len(words) + len(specials)
    about = {
        "pattern": GPT4O,
        "num_vocab_tokens": len(words),
        "default_vocab_size": size,
        "default_num_special_tokens": len(specials),
        "version": "v3",
    }
    (folder / "tekken.json").write_text(json.dumps({"config": about, "vocab": words, "special_tokens": specials}))


@cache
def ranked() -> tuple[bytes, ...]:
    from sgl.grammars.tokens.token_bytes import byte_alphabet

    letters, model = byte_alphabet(), json.loads(bpe(words(LLAMA3)).to_str())["model"]
    merged = [left + right for left, right in model["merges"]]
    return (*(bytes([i]) for i in range(256)), *dict.fromkeys(bytes(letters[char] for char in word) for word in merged))


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    head = b""
    while value > 0x7F:
        head, value = head + bytes([value & 0x7F | 0x80]), value >> 7
    return head + bytes([value])


def field(number: int, value: int | float | bytes) -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def model_proto(pieces: list[tuple[str, float, int]], trainer: dict[int, Any], normalizer: dict[int, Any]) -> bytes:
    """A sentencepiece model as its library writes it."""
    rows = (
        b"".join(field(n, value) for n, value in enumerate((text.encode(), score, kind), 1))
        for text, score, kind in pieces
    )
    parts = [field(1, row) for row in rows]
    parts += [
        field(n, b"".join(field(i, value) for i, value in part.items())) for n, part in ((2, trainer), (3, normalizer))
    ]
    return b"".join(parts)


FIRST_PIECES = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
BYTE_PIECES = [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]


def sentencepiece_bpe(user: tuple[str, ...] = ()) -> list[tuple[str, float, int]]:
    pieces, _ = spaced_bpe()
    own = [(text, 0.0, 4) for text in user]
    return [
        *FIRST_PIECES,
        *own,
        *BYTE_PIECES,
        *((text, -float(i), 1) for i, text in enumerate(pieces) if text not in user),
    ]


def sentencepiece_unigram() -> list[tuple[str, float, int]]:
    return [*FIRST_PIECES, *BYTE_PIECES, *((text, score, 1) for text, score in unigram_pieces())]


def sentencepiece(
    pieces: Callable[[], list[tuple[str, float, int]]],
    algorithm: int,
    dummy: bool = True,
    collapse: bool = False,
    **config: Any,
) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_configs(folder, "llama", {"tokenizer_class": "LlamaTokenizer"} | config)
        trainer = {3: algorithm, 35: 1, 40: 0, 41: 1, 42: 2, 43: -1}
        (folder / "tokenizer.model").write_bytes(model_proto(pieces(), trainer, {3: int(dummy), 4: int(collapse)}))

    return write


PLUS = (
    AddedToken("    ", normalized=False),
    AddedToken("<tool>", normalized=False, lstrip=True),
    AddedToken("[R]", normalized=False, rstrip=True),
    AddedToken("word", normalized=True, single_word=True),
    AddedToken("Ａ", normalized=True),
)
SPACES = (
    AddedToken("▁▁", normalized=False),
    AddedToken("▁▁▁▁", normalized=False),
    AddedToken("\n\n", normalized=False),
)
LLAMA2 = ["<unk>", "<s>", "</s>", *SPECIALS[3:]]
GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
PREPEND = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
EXTRA = {str(i): {"content": text, "special": True} for i, text in enumerate(["<|begin|>", "<|eot|>"], 0)}


def metaspace(scheme: str, split: bool = False) -> Any:
    return pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=split)


def llama2(normalizer: Any, pre: Any, added: tuple[AddedToken, ...] = ()) -> Callable[[], Backend]:
    return lambda: spaced(normalizer, pre, True, LLAMA2, bos(), added)


def gemma() -> Backend:
    split = pre_tokenizers.Split(" ", "merged_with_previous")
    return spaced(normalizers.Replace(" ", "▁"), split, False, GEMMA, bos("<bos>", 2), SPACES)


DIGITS = pre_tokenizers.Digits(individual_digits=True)
FALCON = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Punctuation("contiguous"),
        byte_level(),
        pre_tokenizers.Digits(),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    ]
)
DEEPSEEK = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(Regex("[\r\n]"), "isolated"),
        pre_tokenizers.Split(Regex(r"\s?\p{L}+"), "isolated"),
        pre_tokenizers.Split(Regex(r"\s?\p{P}+"), "isolated"),
        pre_tokenizers.Split(Regex("[一-龥ࠀ-一가-퟿]+"), "isolated"),
        DIGITS,
        byte_level(use_regex=False),
    ]
)
BLOOM = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(r" ?[^(\s|[.,!?…。，、।۔،])]+"), "isolated"), byte_level(use_regex=False)]
)
GLM = processors.TemplateProcessing(
    single="<|endoftext|> <|padding|> $A", special_tokens=[("<|endoftext|>", 5), ("<|padding|>", 6)]
)
NEW = [(bpe(byte_level()).get_vocab_size() + n, text) for n, text in enumerate(["<tool>", "words"])]
BOS_LAST = processors.Sequence([processors.ByteLevel(trim_offsets=False), bos()])
GENERIC: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
GPT2: dict[str, Any] = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
QWEN: dict[str, Any] = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}

KINDS = [
    TokenizerKind("gpt2", saved(lambda: bpe(byte_level()), "gpt2", **GPT2)),
    TokenizerKind("gpt2-added", saved(lambda: bpe(byte_level(), added=PLUS), "gpt2", **GPT2), lossy=True),
    TokenizerKind("gpt2-prefix", saved(lambda: bpe(byte_level(prefix=True)), "gpt2", **GPT2, add_prefix_space=True)),
    TokenizerKind("gpt2-files", vocab_and_merges("gpt2")),
    TokenizerKind("opt-files", vocab_and_merges("opt", **GPT2 | {"bos_token": "</s>", "add_bos_token": True})),
    TokenizerKind("qwen2-files", vocab_and_merges("qwen2", **QWEN), composes=True),
    TokenizerKind("llama3", saved(lambda: bpe(words(LLAMA3), post=BOS_LAST, ignore_merges=True), "llama", **GENERIC)),
    TokenizerKind(
        "llama3-class",
        saved(lambda: bpe(words(LLAMA3), post=BOS_LAST), "llama", **GENERIC | {"tokenizer_class": "LlamaTokenizer"}),
    ),
    TokenizerKind("add-bos-beside-json", saved(lambda: bpe(words(LLAMA3)), "llama", **GENERIC, add_bos_token=True)),
    TokenizerKind(
        "no-bos-beside-json", saved(lambda: bpe(words(LLAMA3), post=BOS_LAST), "llama", **GENERIC, add_bos_token=False)
    ),
    TokenizerKind("gpt-4o", saved(lambda: bpe(words(GPT4O), added=PLUS), "llama", **GENERIC), lossy=True),
    TokenizerKind(
        "qwen2",
        saved(lambda: bpe(words(LLAMA3.replace("{1,3}", "")), normalizers.NFC()), "qwen2", **QWEN),
        composes=True,
    ),
    TokenizerKind("qwen2-generic", saved(lambda: bpe(byte_level()), "qwen2", **GENERIC), composes=True),
    TokenizerKind(
        "qwen3",
        saved(lambda: bpe(words(LLAMA3.replace("{1,3}", "")), normalizers.NFC()), "qwen3", **QWEN),
        composes=True,
    ),
    TokenizerKind(
        "neox",
        saved(lambda: bpe(byte_level(), normalizers.NFC()), "gpt_neox", tokenizer_class="GPTNeoXTokenizer"),
        composes=True,
    ),
    TokenizerKind("neox-bare", saved(lambda: bpe(byte_level(), normalizers.NFC()), "gpt_neox"), composes=True),
    TokenizerKind(
        "cohere",
        saved(
            lambda: bpe(pre_tokenizers.Sequence([DIGITS, byte_level()]), normalizers.NFC(), bos()),
            "cohere",
            tokenizer_class="CohereTokenizerFast",
            bos_token="<s>",
        ),
        composes=True,
    ),
    TokenizerKind(
        "starcoder2", saved(lambda: bpe(pre_tokenizers.Sequence([DIGITS, byte_level()])), "starcoder2", **GPT2)
    ),
    TokenizerKind(
        "deepseek",
        saved(lambda: bpe(DEEPSEEK, post=BOS_LAST), "llama", **GENERIC | {"tokenizer_class": "LlamaTokenizerFast"}),
    ),
    TokenizerKind("glm4", saved(lambda: bpe(words(LLAMA3), post=GLM), "glm4", **GENERIC)),
    TokenizerKind(
        "named-only-in-config",
        saved(lambda: bpe(byte_level()), "llama", **GENERIC, pad_token="[PAD]", extra_special_tokens=["<tool>"]),
    ),
    TokenizerKind(
        "added-only-in-config",
        saved(
            lambda: bpe(byte_level()),
            "llama",
            **GENERIC,
            added_tokens_decoder={str(i): {"content": text, "special": False} for i, text in NEW},
        ),
    ),
    TokenizerKind(
        "flags-only-in-config",
        saved(
            lambda: bpe(byte_level(), added=PLUS[1:2]),
            "llama",
            **GENERIC,
            added_tokens_decoder={str(NEW[0][0]): {"content": "<tool>", "rstrip": True, "special": False}},
        ),
        lossy=True,
    ),
    TokenizerKind("falcon", saved(lambda: bpe(FALCON), "falcon", **GENERIC)),
    TokenizerKind("bloom", saved(lambda: bpe(BLOOM), "bloom", **GENERIC | {"tokenizer_class": "BloomTokenizerFast"})),
    TokenizerKind("olmo2", saved(lambda: bpe(words(LLAMA3)), "olmo2", **GENERIC)),
    TokenizerKind(
        "llama2-legacy",
        saved(
            llama2(PREPEND, None),
            "llama",
            tokenizer_class="LlamaTokenizer",
            legacy=True,
            bos_token="<s>",
            eos_token="</s>",
        ),
    ),
    TokenizerKind(
        "llama2",
        saved(
            llama2(PREPEND, None),
            "llama",
            tokenizer_class="LlamaTokenizer",
            legacy=False,
            bos_token="<s>",
            eos_token="</s>",
        ),
    ),
    TokenizerKind("llama2-generic", saved(llama2(PREPEND, None), "llama", **GENERIC)),
    TokenizerKind(
        "mistral", saved(llama2(None, metaspace("first")), "mistral", **GENERIC | {"tokenizer_class": "LlamaTokenizer"})
    ),
    TokenizerKind(
        "phi3",
        saved(
            llama2(PREPEND, None, (AddedToken("<|user|>", rstrip=True, special=True),)),
            "phi3",
            **GENERIC | {"tokenizer_class": "LlamaTokenizer"},
        ),
        lossy=True,
    ),
    TokenizerKind("metaspace-always", saved(llama2(None, metaspace("always")), "llama", **GENERIC)),
    TokenizerKind("metaspace-always-split", saved(llama2(None, metaspace("always", True)), "llama", **GENERIC)),
    TokenizerKind("metaspace-never", saved(llama2(None, metaspace("never")), "llama", **GENERIC)),
    TokenizerKind(
        "gemma", saved(gemma, "gemma", tokenizer_class="GemmaTokenizerFast", bos_token="<bos>", eos_token="<eos>")
    ),
    TokenizerKind(
        "gemma3", saved(gemma, "gemma3_text", tokenizer_class="GemmaTokenizer", bos_token="<bos>", eos_token="<eos>")
    ),
    TokenizerKind("unigram", saved(lambda: unigram(True, metaspace("always")), "llama", **GENERIC)),
    TokenizerKind(
        "unigram-unknowns",
        saved(lambda: unigram(False, metaspace("first"), decoder=decoders.Metaspace("▁", "first")), "llama", **GENERIC),
        lossy=True,
    ),
    TokenizerKind("tekken", tekken),
    TokenizerKind("spm-bpe", sentencepiece(sentencepiece_bpe, 2), library=False),
    TokenizerKind(
        "spm-bpe-no-dummy", sentencepiece(lambda: sentencepiece_bpe(("▁▁", "\n\n")), 2, dummy=False), library=False
    ),
    TokenizerKind("spm-bpe-always", sentencepiece(sentencepiece_bpe, 2, legacy=True), library=False),
    TokenizerKind("spm-unigram", sentencepiece(sentencepiece_unigram, 1), library=False),
    TokenizerKind(
        "spm-unigram-collapsing", sentencepiece(sentencepiece_unigram, 1, collapse=True), lossy=True, library=False
    ),
    TokenizerKind(
        "tiktoken",
        tiktoken_file(
            "tokenizer.model",
            "llama",
            added_tokens_decoder={str(len(ranked()) + int(i)): token for i, token in EXTRA.items()},
        ),
        library=False,
    ),
    TokenizerKind(
        "qwen1",
        tiktoken_file(
            "qwen.tiktoken", "qwen", tokenizer_class="QWenTokenizer", auto_map={"AutoTokenizer": ["x.Y", None]}
        ),
        composes=True,
        library=False,
    ),
]

"""The tokenizer that a GGUF file keeps among its keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Backend

from sgl.grammars.tokens.packed_arrays import PackedArray, PackedNumbers, PackedTexts, halves_of, merges_known
from sgl.runtime.common.garbage_collection import collector_off
from sgl.runtime.errors import ConfigError, brief

from ..chat_templates.chat_template_files import given_source
from ..chat_templates.hf_chat_template import BadTemplate
from ..tokenizer import Tokenizer, compiled_templates
from .gguf_pre_tokenizers import PreTokenizerRules, normalizer, pre_tokenizer, pre_tokenizer_rules
from .sentencepiece_file import BPE, SPACE, PieceKind, SentencePiece, SentencePieceFile, backend_of
from .tokenizer_file_checks import LONGEST, SHOWN, require_little_growth, wrong
from .tokenizer_files import MOST_JSON, MOST_TOKENS, TokenizerFiles, put_before

T = TypeVar("T")

BEGIN = "tokenizer.ggml."
BY_MERGES = ("gpt2", "gemma4")  # kinds whose merges are listed
TEMPLATE, WHOLE = "tokenizer.chat_template", "tokenizer.huggingface.json"
NAMED = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
ENDS = ("eos", "eot", "eom")
ENDINGS = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|endoftext|>", "<|eom_id|>"}
)  # control tokens that end a text
HARMONY = frozenset({"<|return|>", "<|call|>"})  # gpt-oss: <|end|> ends a channel there, not the text
ADDED = (PieceKind.CONTROL, PieceKind.UNKNOWN, PieceKind.USER)
KEPT = ("<unk>", "<s>", "<|endoftext|>")  # tokens of Phi-3 that leave the spaces after them
OTHERS = {
    "bert": "WordPiece, of encoders",
    "t5": "unigram, of encoders and encoder-decoders",
    "rwkv": "RWKV's own",
    "plamo2": "PLaMo 2's own",
    "hybriddna": "of DNA models",
    "whitespace": "of an encoder",
    "no_vocab": "no tokenizer",
    "none": "no tokenizer",
}
NUMBERS: dict[type, str] = {int: "iu", float: "f", bool: "b"}  # kinds of numpy's types
REMEDY = "take another GGUF file of this model, or its safetensors checkpoint"


@collector_off()  # up to a million objects are made, none of them in a cycle
def gguf_tokenizer(metadata: Mapping[str, Any], where: str, chat_template: str | Path | None = None) -> Tokenizer:
    """The tokenizer of a file with these keys, with its chat template and the ids that end a text.

    metadata: as `runtime.loading.gguf` reads it.  where: the file, for errors.  chat_template: see `Tokenizer.load`.
    Raises ConfigError for tokenizers that cannot be read exactly: of an unknown kind, or cut into words in an unknown
    way.
    """
    try:
        keys = _TokenizerKeys(metadata, where)
        found = _read(keys)
        if chat_template is not None:
            found.config["chat_template"] = {
                "default": given_source(chat_template, found.vocabulary or found.backend.get_vocab())
            }
        return Tokenizer(found.backend, found.config, _end_ids(keys), found.vocabulary)
    except BadTemplate as error:
        place = "Engine(chat_template=...)" if chat_template is not None else f"{where}: {TEMPLATE}"
        raise BadTemplate(f"{place}: {error}") from error
    except ConfigError:
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
            raise
        raise ConfigError(
            f"{where}: its tokenizer cannot be used ({type(error).__name__}: {brief(error)}); {REMEDY}"
        ) from error


def plain_summary(metadata: Mapping[str, Any], where: str) -> tuple[int, bool] | None:
    """How many tokens the tokenizer has, and whether it has a chat template, without making it.

    None: it must be made to know, since it is of a kind that is not looked through here, or would be refused.
    """
    keys = _TokenizerKeys(metadata, where)
    texts, merges, kind = metadata.get(f"{BEGIN}tokens"), metadata.get(f"{BEGIN}merges"), metadata.get(f"{BEGIN}model")
    if WHOLE in metadata or kind not in BY_MERGES:
        return None
    if not (isinstance(texts, PackedTexts) and isinstance(merges, PackedTexts) and merges_known(texts, merges)):
        return None
    try:
        words = _rules(keys, kind)
        keys.bos(words.bos)
        if any(len(keys.tokens[i]) > LONGEST for i in keys.ids_of(*ADDED)):
            return None
        _end_ids(keys)
        return len(keys.tokens), "default" in compiled_templates(_config(keys))
    except ConfigError:
        return None


def _read(keys: _TokenizerKeys) -> TokenizerFiles:
    vocabulary: dict[str, int] | None = None
    kind, where = keys.one("model", str), keys.where
    if (saved := keys.metadata.get(WHOLE)) is not None:
        backend = _saved(saved, where)
    elif kind in BY_MERGES:
        vocabulary = keys.vocabulary()
        backend = _by_merges(keys, vocabulary, _rules(keys, kind))
    elif kind == "llama":
        backend, vocabulary = _sentencepiece(keys)
    else:
        what = f" ({OTHERS[kind]})" if kind in OTHERS else ""
        raise ConfigError(
            f"{where}: tokenizer.ggml.model={str(kind)[:80]!r}{what} is not supported; supported are gpt2, llama and "
            f"gemma4: {REMEDY}"
        )
    return TokenizerFiles(backend, _config(keys), vocabulary)


def _config(keys: _TokenizerKeys) -> dict[str, Any]:
    """The contents of the file's tokenizer_config.json."""
    config: dict[str, Any] = {ours: token for name, ours in NAMED.items() if (token := keys.token(name)) is not None}
    return config | _templates(keys.metadata, keys.where)


def end_ids(metadata: Mapping[str, Any], where: str) -> list[int]:
    """Any of these ends a text: the file does not keep a list, so control tokens that are spelled as such count too."""
    return _end_ids(_TokenizerKeys(metadata, where))


def _end_ids(keys: _TokenizerKeys) -> list[int]:
    named = [index for name in ENDS if (index := keys.index(name)) is not None]
    control = {keys.tokens[i]: i for i in keys.ids_of(PieceKind.CONTROL)}
    endings = ENDINGS - {"<|end|>"} | HARMONY if control.keys() >= HARMONY else ENDINGS
    return list(dict.fromkeys(named + [i for token, i in control.items() if token in endings]))


class _TokenizerKeys:
    """The keys of a tokenizer, checked where they are read."""

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self.metadata, self.where = metadata, where

    def one(self, name: str, kind: type[T]) -> T | None:
        value = self.metadata.get(BEGIN + name)
        if value is not None and type(value) is not kind:
            raise wrong(Path(self.where), BEGIN + name, _quoted(value), kind.__name__)
        return value

    def all(self, name: str, kind: type[T], count: int | None = None) -> Sequence[T] | None:
        """A list of values of one type, as many as there are tokens."""
        values = self.metadata.get(BEGIN + name)
        if values is None:
            return None
        if not _is_list_of(values, kind):
            raise wrong(Path(self.where), BEGIN + name, _quoted(values), f"a list of {kind.__name__}")
        if count is not None and len(values) != count:
            raise wrong(Path(self.where), BEGIN + name, f"{len(values):,} values", f"one for each of {count:,} tokens")
        found: Sequence[T] = values
        return found

    @cached_property
    def tokens(self) -> list[str]:
        found = self.all("tokens", str)
        if not found or len(found) > MOST_TOKENS:
            raise wrong(
                Path(self.where), f"{BEGIN}tokens", f"{len(found or ()):,} tokens", f"a list of 1 to {MOST_TOKENS:,}"
            )
        return list(found)

    @cached_property
    def kinds(self) -> np.ndarray:
        """Of each token, see `PieceKind`."""
        found = self.all("token_type", int, len(self.tokens))
        if not found:
            return np.full(len(self.tokens), PieceKind.NORMAL)
        return found.numbers if isinstance(found, PackedNumbers) else np.array(found)

    def ids_of(self, *kinds: PieceKind) -> list[int]:
        """The tokens of these kinds."""
        found: list[int] = np.flatnonzero(np.isin(self.kinds, kinds)).tolist()
        return found

    def vocabulary(self) -> dict[str, int]:
        found = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        _require_once(found, self.tokens, self.where)
        return found

    def pieces(self) -> list[SentencePiece]:
        scores = self.all("scores", float, len(self.tokens)) or [0.0] * len(self.tokens)
        return list(map(SentencePiece._make, zip(self.tokens, scores, self.kinds.tolist(), strict=True)))

    def merges(self) -> list[tuple[str, str]] | None:
        """Pairs; a space may be the first letter of the left part."""
        found = self.all("merges", str)
        if found is None:
            return None
        pairs: list[Any] = found.halves() if isinstance(found, PackedTexts) else list(map(halves_of, found))
        if str in set(map(type, pairs)):
            odd = next(pair for pair in pairs if type(pair) is str)
            raise wrong(Path(self.where), f"{BEGIN}merges", odd, "pairs with a space between")
        return pairs

    def index(self, name: str) -> int | None:
        """The id of a token that a key names."""
        found, count = self.one(f"{name}_token_id", int), len(self.tokens)
        if found is not None and not 0 <= found < count:
            raise wrong(Path(self.where), f"{BEGIN}{name}_token_id", found, f"the id of one of {count:,} tokens")
        return found

    def token(self, name: str) -> str | None:
        found = self.index(name)
        return None if found is None else self.tokens[found]

    def bos(self, default: bool, always: bool = False) -> tuple[str, ...]:
        """What comes before every text. default: where the file does not say. always: whatever the file says."""
        said, token = self.one("add_bos_token", bool), self.token("bos")
        return (token,) if token is not None and (always or (default if said is None else said)) else ()


def _is_list_of(values: Any, kind: type) -> bool:
    if isinstance(values, PackedTexts):
        return kind is str or not len(values)
    if isinstance(values, PackedNumbers):
        return values.numbers.dtype.kind in NUMBERS.get(kind, "") or not len(values)
    return isinstance(values, list) and all(type(value) is kind for value in values)


def _quoted(value: Any) -> Any:
    """As much of it as an error shows."""
    return value[: SHOWN.maxlist + 1] if isinstance(value, PackedArray) else value


# merges that are listed


def _rules(keys: _TokenizerKeys, kind: str) -> PreTokenizerRules:
    """How texts are cut into words. kind: one of BY_MERGES."""
    words = pre_tokenizer_rules("gemma4" if kind == "gemma4" else keys.one("pre", str), keys.where)
    keys.all("scores", float, len(keys.tokens))  # merges need none, but a list that is wrong is damage
    return words


def _by_merges(keys: _TokenizerKeys, vocabulary: dict[str, int], words: PreTokenizerRules) -> Backend:
    if (merges := keys.merges()) is None:
        raise ConfigError(
            f"{keys.where}: there is no key {BEGIN}merges, so words would fall apart into single bytes; {REMEDY}"
        )
    options = _of_escaped(keys) if words.escaped else {}
    try:
        backend = Backend(models.BPE(vocabulary, merges, ignore_merges=words.whole, **options))
    except Exception as error:
        raise ConfigError(
            f"{keys.where}: the tokenizers library does not take its merges ({brief(error)}); {REMEDY}"
        ) from None
    backend.normalizer, backend.pre_tokenizer = normalizer(words), pre_tokenizer(words)
    if words.escaped:
        backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        backend.decoder, backend.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    backend.add_tokens(list(_added(keys)))
    put_before(
        backend, keys.bos(words.bos, always=words.bos and words.escaped)
    )  # early files of Gemma 4 say no, the model needs it
    return backend


def _of_escaped(keys: _TokenizerKeys) -> dict[str, Any]:
    """Characters that are no tokens become those of their bytes, else the unknown token."""
    unknown = keys.token("unknown") or next((keys.tokens[i] for i in keys.ids_of(PieceKind.UNKNOWN)), None)
    return {"unk_token": unknown, "fuse_unk": True, "byte_fallback": bool(keys.ids_of(PieceKind.BYTE))}


def _added(keys: _TokenizerKeys) -> Iterator[AddedToken]:
    for i in keys.ids_of(*ADDED):
        if len(text := keys.tokens[i]) > LONGEST:
            raise wrong(Path(keys.where), f"{BEGIN}tokens", text, f"tokens of at most {LONGEST:,} characters")
        if text:
            yield AddedToken(text, normalized=False, special=bool(keys.kinds[i] != PieceKind.USER))


def _require_once(vocabulary: Mapping[str, int], tokens: Sequence[str], where: str) -> None:
    if len(vocabulary) < len(tokens):
        twice = next(one for one, other in pairwise(sorted(tokens)) if one == other)
        raise wrong(Path(where), f"{BEGIN}tokens", twice, "tokens that are there once")


# sentencepiece


def _sentencepiece(keys: _TokenizerKeys) -> tuple[Backend, dict[str, int]]:
    """With its vocabulary. Merges follow from scores."""
    pieces = [_spelled(piece) for piece in keys.pieces()]
    if keys.all("scores", float) is None:
        raise ConfigError(
            f"{keys.where}: a tokenizer of kind llama must have {BEGIN}scores, one for each token; {REMEDY}"
        )
    texts = [piece.text for piece in pieces]
    vocabulary = dict(zip(texts, range(len(texts)), strict=True))
    _require_once(vocabulary, texts, keys.where)
    prefix, unknown = keys.one("add_space_prefix", bool), keys.index("unknown")
    if unknown is None:
        unknown = next(iter(keys.ids_of(PieceKind.UNKNOWN)), 0)
    found = SentencePieceFile(
        pieces,
        BPE,
        byte_fallback=bool(keys.ids_of(PieceKind.BYTE)),
        unk_id=unknown,
        dummy_prefix=prefix is not False,
        collapse_spaces=keys.one("remove_extra_whitespaces", bool) or False,
    )
    backend, _ = backend_of(found, keys.where, _stripping(keys, pieces), first_only=False)
    if found.dummy_prefix:
        _prefix_always(backend)
    put_before(backend, keys.bos(True))
    return backend, vocabulary


def _prefix_always(backend: Backend) -> None:
    """The dummy space is at the start of a text and after special tokens, also before spaces, as in the format's own
    reader.
    """
    steps = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.pre_tokenizer = None


def _spelled(piece: SentencePiece) -> SentencePiece:
    """The user's tokens of spaces are stored as such; as pieces they have marks in their place, and are merged
    first."""
    if piece.kind != PieceKind.USER or piece.text.strip(" "):
        return piece
    return piece._replace(text=piece.text.replace(" ", SPACE), score=0.0)


def _stripping(keys: _TokenizerKeys, pieces: list[SentencePiece]) -> dict[int, AddedToken]:
    """Phi-3's marks take the spaces after them; the file does not say so."""
    if keys.metadata.get("general.architecture") != "phi3":
        return {}
    marks = {
        i: piece.text for i, piece in enumerate(pieces) if piece.kind == PieceKind.CONTROL and piece.text not in KEPT
    }
    return {i: AddedToken(text, rstrip=True, normalized=False, special=True) for i, text in marks.items()}


# whole


def _saved(text: Any, where: str) -> Backend:
    """A whole tokenizer.json among the keys."""
    if not isinstance(text, str) or len(text) > MOST_JSON:
        raise wrong(Path(where), WHOLE, text, f"a text of at most {MOST_JSON:,} characters")
    try:
        ids = [token["id"] for token in json.loads(text).get("added_tokens") or ()]
        backend = Backend.from_str(text)
    except Exception as error:
        raise ConfigError(
            f"{where}: {WHOLE} is no tokenizer that the tokenizers library reads ({brief(error)}); {REMEDY}"
        ) from None
    if max([*ids, *backend.get_vocab(with_added_tokens=True).values()], default=0) >= MOST_TOKENS:
        raise ConfigError(f"{where}: {WHOLE} has ids of {MOST_TOKENS:,} and more; {REMEDY}")
    require_little_growth(Path(where), backend.normalizer)
    return backend


def _templates(metadata: Mapping[str, Any], where: str) -> dict[str, Any]:
    begin = f"{TEMPLATE}."
    named = {key.removeprefix(begin): value for key, value in metadata.items() if key.startswith(begin)}
    if TEMPLATE in metadata:
        named["default"] = metadata[TEMPLATE]
    for name, source in named.items():
        if not isinstance(source, str):
            raise wrong(Path(where), f"{begin}{name}", source, "a text")
    return {"chat_template": named} if named else {}

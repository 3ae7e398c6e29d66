"""The tokenizer of a model directory, in whatever files it comes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.processors import Sequence as Processors
from tokenizers.processors import TemplateProcessing

from sgl.runtime.common.argument_checks import require_little_json
from sgl.runtime.errors import ConfigError, brief

from .sentencepiece_file import require_small_trie, sentencepiece_backend
from .tekken_file import tekken_backend, tekken_file
from .tiktoken_file import DIGITS_ALONE, DIGITS_IN_THREES, is_tiktoken, tiktoken_backend
from .tokenizer_file_checks import own_class, require_kinds, require_little_growth, require_model_kinds

log = logging.getLogger("sgl.runtime")

AS_SAVED = (
    None,
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
)  # tokenizer classes that take tokenizer.json as it stands
WITHOUT_CLASS = (None, "llama")  # kinds of models without a special tokenizer class
MODELS = (
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "tokenizer.model.v*",
    "*.tiktoken",
    "*.model",
)
REMEDY = (
    "save tokenizer.json next to it: AutoTokenizer.from_pretrained(...).save_pretrained(...) where its tokenizer runs"
)
MOST_NAMES = 8  # of files in a message
MOST_TOKENS = 1 << 20  # ids beyond are a mistake
MOST_VALUES, MOST_NAMED = 3 * 2**20, 5 * 2**17  # of a file of JSON that lists a vocabulary: all, and those with a name
MOST_CHARACTERS = 2**22  # of all tokens
MOST_UNUSED = 1 << 15  # ids between the pieces of a file and the added tokens
MOST_JSON = 64 * 2**20  # bytes of a file of JSON
FLAGS = ("content", "lstrip", "rstrip", "single_word", "normalized", "special")


class CustomTokenizer(NamedTuple):
    """What a checkpoint's own code does with the files of a known kind.

    pattern: of a rank file; tokens: added after those of the file; prefix: comes before every text.
    """

    pattern: str = DIGITS_IN_THREES
    nfc: bool = False
    tokens: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()


CUSTOM = {
    "QWenTokenizer": CustomTokenizer(
        DIGITS_ALONE, True, ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)))
    ),
    "ChatGLMTokenizer": CustomTokenizer(
        tokens=("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop"), prefix=("[gMASK]", "sop")
    ),
    "ChatGLM4Tokenizer": CustomTokenizer(prefix=("[gMASK]", "<sop>")),
}


class TokenizerFiles(NamedTuple):
    """config: of tokenizer_config.json, completed by what the other files say of special tokens.

    vocabulary: the ids of all tokens, with the added ones; None: the backend was not asked yet.
    """

    backend: Backend
    config: dict[str, Any]
    vocabulary: Mapping[str, int] | None = None


def read_tokenizer(folder: Path) -> TokenizerFiles:
    """The tokenizer of a model directory, with the ids that transformers gives.

    Raises:
        ConfigError: there is none in it, or a file of it cannot be read.
    """
    config = _config(folder)
    model = read_json(folder / "config.json")
    require_model_kinds(folder / "config.json", model)
    if (folder / "tokenizer.json").is_file():
        found = _saved(folder, config, model)
    elif file := tekken_file(folder):
        found = _of_tekken(file, config)
    elif file := _model_file(folder):
        found = _converted(folder, file, config)
    else:
        found = _by_transformers(folder, config)
    rows = model.get("vocab_size") or (model.get("text_config") or {}).get("vocab_size")
    require_little_growth(folder / "tokenizer.json", found.backend.normalizer)
    vocabulary = found.backend.get_vocab(with_added_tokens=True)
    _require_bounded(vocabulary, folder)
    backend = _within(found.backend, rows)
    if backend is not found.backend:
        vocabulary = backend.get_vocab(with_added_tokens=True)
    return found._replace(backend=backend, vocabulary=vocabulary)


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; {} without one. Raises ConfigError for anything else."""
    if not file.is_file():
        return {}
    if (size := file.stat().st_size) > MOST_JSON:
        raise ConfigError(f"{file} has {size:,} bytes, at most {MOST_JSON:,} are read; download it again")
    try:
        data = file.read_bytes()
        require_little_json(data, MOST_NAMED, MOST_JSON // 2)
        found = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is no JSON that can be read ({brief(error)}); {_hint(file)}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file} holds {type(found).__name__}, not an object; {_hint(file)}")
    return found


def _hint(file: Path) -> str:
    with file.open("rb") as stream:
        pointer = stream.read(40).startswith(b"version https://git-lfs")
    return "it is a pointer of git-lfs: run `git lfs pull`" if pointer else "download it again"


def _config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        values = read_json(folder / name)
        require_kinds(folder / name, values)
        found |= {key: value for key, value in values.items() if value is not None}
    return found


# tokenizer.json


def _saved(folder: Path, config: dict[str, Any], model: Mapping[str, Any]) -> TokenizerFiles:
    """Unchanged, unless transformers builds a special class from its words: by that class."""
    if not model or own_class(config):
        return TokenizerFiles(_from_file(folder), config)
    if config.get("tokenizer_class") in AS_SAVED and model.get("model_type") in WITHOUT_CLASS:
        backend = _from_file(folder)
        if _complete(backend, _extra(folder, config), config):
            return TokenizerFiles(backend, config)
    try:
        return _by_transformers(folder, config)
    except ConfigError as error:
        found = TokenizerFiles(_from_file(folder), config)
        log.warning("%s; tokenizer.json is taken as it stands", error)
        return found


def _complete(backend: Backend, extra: dict[int, AddedToken], config: Mapping[str, Any]) -> bool:
    """Whether all tokens that the configs name are in tokenizer.json, as they name them."""
    added = backend.get_added_tokens_decoder()
    same = all(i in added and _flags(added[i]) == _flags(token) for i, token in extra.items())
    return same and _named(config) <= {token.content for token in added.values()}


def _named(config: Mapping[str, Any]) -> set[str]:
    """The special tokens of a config: `bos_token` and its like, and the lists of further ones."""
    said = [value for name, value in config.items() if name.endswith("_token")]
    said += [
        token for name in ("additional_special_tokens", "extra_special_tokens") for token in config.get(name) or ()
    ]
    return {
        content
        for token in said
        if isinstance(content := token.get("content") if isinstance(token, dict) else token, str)
    }


def _from_file(folder: Path) -> Backend:
    file = folder / "tokenizer.json"
    _require_little(file)
    try:
        return Backend.from_file(str(file))
    except Exception as error:
        raise ConfigError(
            f"{file} is not a tokenizer that the tokenizers library can read ({brief(error)}); {_hint(file)}"
        ) from None


def _require_little(file: Path) -> None:
    """Before any of it is made."""
    if (size := file.stat().st_size) > MOST_JSON:
        raise ConfigError(f"{file} has {size:,} bytes, at most {MOST_JSON:,} are read; {_hint(file)}")
    data = file.read_bytes()
    try:
        require_little_json(data, MOST_VALUES, MOST_JSON)
        if (named := data.count(b":")) > MOST_NAMED:
            raise ValueError(f"it holds up to {named:,} tokens and keys, at most {MOST_NAMED:,} are read")
        if b'"Unigram"' in data:
            if (lists := data.count(b"[")) > MOST_NAMED // 2:
                raise ValueError(f"it lists up to {lists:,} pieces, at most {MOST_NAMED // 2:,} are read")
            require_small_trie(str(entry[0]) for entry in (json.loads(data).get("model") or {}).get("vocab") or ())
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError) as error:
        raise ConfigError(f"{file} is not a tokenizer that can be read ({error}); {_hint(file)}") from None


def _flags(token: AddedToken) -> tuple[Any, ...]:
    return tuple(getattr(token, name) for name in FLAGS)


# by transformers


def _by_transformers(folder: Path, config: dict[str, Any]) -> TokenizerFiles:
    """As transformers reads it, without network and without code of the checkpoint."""
    words = len(read_json(folder / "vocab.json"))
    reasons = []
    for name in ("AutoTokenizer", *(["GPT2Tokenizer"] if words else [])):
        try:
            found = _ask_transformers(name, folder)
        except Exception as error:
            reasons.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            continue
        if found.backend_tokenizer.get_vocab_size() >= words > 0 or not words:
            return TokenizerFiles(found.backend_tokenizer, dict(found.special_tokens_map) | config)
        reasons.append(f"{name}: it does not use vocab.json")
    raise ConfigError(_nothing(folder, reasons, own_class(config)))


def _ask_transformers(name: str, folder: Path) -> Any:
    import transformers

    return getattr(transformers, name).from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)


def _nothing(folder: Path, reasons: Iterable[str], own: str | None) -> str:
    if own:
        return (
            f"{folder / 'tokenizer_config.json'}: auto_map={own!r}: its tokenizer is Python that comes with the "
            f"checkpoint, which is never run, whatever Engine(trust_remote_code=...) says; {REMEDY}"
        )
    there = [
        file.name for file in folder.iterdir() if file.is_file() and ("token" in file.name or "vocab" in file.name)
    ]
    named = ", ".join(sorted(there)[:MOST_NAMES]) + (", ..." if len(there) > MOST_NAMES else "")
    return (
        f"{folder} has no tokenizer that can be read: no tokenizer.json, and transformers cannot make one of its files "
        f"({named or 'none'}): {'; '.join(reasons)}. {REMEDY[0].upper()}{REMEDY[1:]}"
    )


# tekken, sentencepiece and tiktoken


def _of_tekken(file: Path, config: dict[str, Any]) -> TokenizerFiles:
    """Without mistral-common, so that it is one reader whether that is installed or not."""
    backend, names = tekken_backend(file, read_json(file))
    config = names | config
    put_before(backend, _bos(config, True))
    return TokenizerFiles(backend, config)


def _model_file(folder: Path) -> Path | None:
    return next((file for pattern in MODELS for file in sorted(folder.glob(pattern)) if file.is_file()), None)


def _converted(folder: Path, file: Path, config: dict[str, Any]) -> TokenizerFiles:
    name, extra = config.get("tokenizer_class"), _extra(folder, config)
    if extra and max(extra) > MOST_UNUSED + file.stat().st_size:  # a piece takes a byte at least
        raise ConfigError(
            f"{folder}: the added token {max(extra):,} is far beyond the pieces of {file.name}; correct it"
        )
    custom, names = CUSTOM.get(str(name)), dict[str, str]()
    if is_tiktoken(file):
        if custom is None and own_class(config):
            raise ConfigError(
                f"{file}: how {name} cuts texts is written in the checkpoint's own code, which is not run; {REMEDY}"
            )
        rules = custom or CustomTokenizer()
        backend = tiktoken_backend(file, rules.pattern, extra, rules.nfc)
    else:
        backend, names = sentencepiece_backend(file, extra, first_only=not config.get("legacy", False))
    if custom and not extra:
        backend.add_special_tokens([AddedToken(token, normalized=False) for token in custom.tokens])
    config = names | config
    put_before(backend, custom.prefix if custom and custom.prefix else _bos(config, "bos_token" in names))
    return TokenizerFiles(backend, config)


def _bos(config: Mapping[str, Any], default: bool) -> tuple[str, ...]:
    """What comes before every text."""
    token = config.get("bos_token")
    content = token.get("content") if isinstance(token, dict) else token
    return (str(content),) if content and config.get("add_bos_token", default) else ()


def put_before(backend: Backend, tokens: Iterable[str]) -> None:
    """Have these tokens put before every text, those of them that the vocabulary has."""
    ids = {token: index for token in tokens if (index := backend.token_to_id(token)) is not None}
    if not ids:
        return
    template = TemplateProcessing(single=[*ids, "$A"], pair=[*ids, "$A", "$B"], special_tokens=list(ids.items()))
    own = backend.post_processor
    backend.post_processor = template if own is None else Processors([own, template])


# added tokens


def _extra(folder: Path, config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Tokens that the checkpoint adds to those of its vocabulary file, by id."""
    said = config.get("added_tokens_decoder") or {}
    file = folder / "tokenizer_config.json"
    try:
        found = {
            int(i): AddedToken(**{name: token[name] for name in FLAGS if name in token}) for i, token in said.items()
        }
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ConfigError(f"{file}: added_tokens_decoder cannot be read ({brief(error)}); mend it") from None
    if found:
        _require_ids(found, file, ["added_tokens_decoder"] * len(found))
        return found
    special = _named(config)
    added = read_json(folder / "added_tokens.json")
    _require_ids(added.values(), folder / "added_tokens.json", added)
    return {i: AddedToken(text, normalized=text not in special, special=text in special) for text, i in added.items()}


def _require_ids(ids: Iterable[Any], file: Path, of: Iterable[str]) -> None:
    for key, i in zip(of, ids, strict=True):
        if type(i) is not int or not 0 <= i < MOST_TOKENS:
            raise ConfigError(
                f"{file}: {str(i)[:40]} is not a token id below {MOST_TOKENS:,}, for {key[:60]!r}; correct it"
            )


def _require_bounded(vocabulary: Mapping[str, int], folder: Path) -> None:
    """Every id has a row in the tables that are made of a vocabulary."""
    if (characters := sum(map(len, vocabulary))) > MOST_CHARACTERS:
        raise ConfigError(
            f"{folder / 'tokenizer.json'}: its tokens have {characters:,} characters, at most {MOST_CHARACTERS:,} "
            "are read; download it again"
        )
    token, largest = max(vocabulary.items(), key=itemgetter(1), default=("", 0))
    if largest >= MOST_TOKENS:
        raise ConfigError(
            f"{folder / 'tokenizer.json'}: token {token[:60]!r} has the id {largest:,}, at most {MOST_TOKENS:,} are "
            "read; mend it"
        )


def _within(backend: Backend, rows: int | None) -> Backend:
    """Without added tokens beyond the rows of the model's embedding: a text that spells one stays text."""
    beyond = {i for i in backend.get_added_tokens_decoder() if rows is not None and i >= rows}
    if not beyond or backend.get_vocab_size(with_added_tokens=False) > (rows or 0):
        return backend
    spec = json.loads(backend.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["id"] not in beyond]
    return Backend.from_str(json.dumps(spec))

"""Text to token ids and back, with the tokenizers library alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream

from sgl.grammars.tokens.token_bytes import token_bytes
from sgl.runtime.errors import ConfigError, check_text
from sgl.runtime.text.chat_templates.chat_template_files import how_to_give_one, named_templates, origin, templates_for
from sgl.runtime.text.chat_templates.hf_chat_template import BadTemplate, ChatTemplate, require_short
from sgl.runtime.text.chat_templates.quoted_text import QuotedText
from sgl.runtime.text.chat_templates.special_token_quoting import QuotedConversation, SpecialTokenMarks
from sgl.runtime.text.chat_templates.template_messages import with_contents, with_roles
from sgl.runtime.text.chat_templates.template_traits import TemplateTraits
from sgl.runtime.text.detokenizer import detokenizer
from sgl.runtime.text.tokenizer_files.tokenizer_file_checks import wrong
from sgl.runtime.text.tokenizer_files.tokenizer_files import FLAGS, MOST_TOKENS, read_json, read_tokenizer

_LONG = 500  # characters; of longer texts other threads run meanwhile
_PROBE = "a"  # any text whose tokens do not depend on what a post-processor puts around them
_PREFIXING = ("normalizer", "pre_tokenizer")
_PARTS = (*_PREFIXING, "post_processor", "decoder")
_EMPTY = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}


class Tokenizer:
    """A Hugging Face tokenizer; thread-safe. Ids run from 0 to `vocab_size - 1`.

    A segment encoded without the special prefix is a continuation: neither BOS nor sentencepiece's dummy space is put
    before it, so that segments decode to their concatenation.

    Attributes:
        token_bytes: by id; b"" for unused ids, the text for special tokens.
        exact_bytes: True if decoding is the concatenation of `token_bytes`.
        special_ids: never part of plain text.
        eos_ids: each of these ends a text.
        prefix_ids: tokens that the post-processor puts before a text, e.g. (BOS,).
        without_template: the advice in the error for a missing chat template.
    """

    def __init__(
        self,
        backend: Backend,
        config: Mapping[str, Any],
        eos_ids: Iterable[int] = (),
        vocabulary: Mapping[str, int] | None = None,
    ) -> None:
        """vocabulary: the ids of all tokens of the backend, with the added ones, where they are at hand."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._config = config
        self._lock = threading.Lock()
        self._variants: dict[tuple[bool, bool, bool], Backend] = {(False, True, True): backend}
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.token_bytes, self.exact_bytes = token_bytes(
            backend.get_vocab(with_added_tokens=True) if vocabulary is None else vocabulary,
            {index: token.content for index, token in added.items()},
            _part(backend.decoder),
            self.special_ids,
        )
        self.vocab_size = len(self.token_bytes)
        self.special_tokens = _special_tokens(config)
        self.bos_id: int | None = self._special_id("bos_token")
        self.eos_ids: tuple[int, ...] = self._merged_eos(eos_ids)
        self.prefix_ids = self._ask_prefix()
        self._chats = compiled_templates(config)
        self._traits: dict[str, TemplateTraits] = {}
        self.without_template = "name one of the language's templates instead"
        self._visible = list(self.token_bytes)
        for i in self.special_ids:
            self._visible[i] = b""

    @classmethod
    def load(cls, path: str | Path, chat_template: str | None = None) -> Tokenizer:
        """Load the tokenizer of a model directory.

        Args:
            chat_template: replaces the checkpoint's: Jinja source, a .jinja file, or the name of a known format.

        Raises:
            ConfigError: the directory has no tokenizer, one of its files cannot be read, or the template does not
                compile.
        """
        folder = Path(path)
        try:
            return cls._loaded(folder, chat_template)
        except BadTemplate as error:
            raise BadTemplate(f"{origin(folder, chat_template)}: {error}") from error
        except ConfigError:
            raise
        except BaseException as error:  # whatever the libraries find wrong; a panic of Rust is no Exception
            if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
                raise
            raise ConfigError(
                f"{folder}: its tokenizer cannot be used ({type(error).__name__}: {str(error)[:400]}); restore "
                "tokenizer.json and tokenizer_config.json"
            ) from error

    @classmethod
    def _loaded(cls, folder: Path, chat_template: str | None) -> Tokenizer:
        backend, config, vocabulary = read_tokenizer(folder)
        config["chat_template"] = templates_for(
            folder, config, backend.get_added_tokens_decoder().values(), chat_template
        )
        tokenizer = cls(backend, config, _declared_ids(folder, "eos_token_id"), vocabulary)
        tokenizer.without_template = how_to_give_one(folder)
        if tokenizer.bos_id is None:
            declared = _declared_ids(folder, "bos_token_id")
            tokenizer.bos_id = next((i for i in declared if 0 <= i < tokenizer.vocab_size), None)
        return tokenizer

    # text to ids

    def encode(
        self, text: str, special_prefix: bool = False, parse_special: bool = True, parse_marks: bool = True
    ) -> np.ndarray:
        """Token ids of `text`, int32 [n].

        Args:
            special_prefix: the text is the start of a prompt: put `prefix_ids` (unless it already starts with
                them) and sentencepiece's dummy space before it.
            parse_special: turn the strings of special tokens into those tokens; otherwise they are plain text.
            parse_marks: if False, the strings of other `marks` stay text, too.

        Marks in quoted parts of a `QuotedText` always stay text. Raises ConfigError for unpaired surrogates.
        """
        if isinstance(text, QuotedText) and text.quoted and parse_special and parse_marks:
            return self.marks.encode(text, special_prefix)
        check_text(text)
        encoded = _ids_of(self._variant(not special_prefix, parse_special and parse_marks, parse_marks), text)
        ids = np.array(encoded, dtype=np.int32)
        if special_prefix and self.prefix_ids and tuple(encoded[: len(self.prefix_ids)]) != self.prefix_ids:
            return np.concatenate([np.array(self.prefix_ids, np.int32), ids])
        return ids

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Return the tokens of `text` as (id, start, end), with character positions."""
        (encoded,) = self._backend.encode_batch([text], add_special_tokens=False)
        return [(i, *place) for i, place in zip(encoded.ids, encoded.offsets, strict=True)]

    def _variant(self, continuation: bool, parse_special: bool, parse_marks: bool) -> Backend:
        key = (continuation and self._has_dummy_prefix, parse_special, parse_marks)
        variant = self._variants.get(key)
        if variant is None:
            with self._lock:
                variant = self._variants.get(key) or self._make_variant(*key)
                self._variants[key] = variant
        return variant

    def _make_variant(self, continuation: bool, parse_special: bool, parse_marks: bool) -> Backend:
        """It shares the vocabulary and the merges."""
        parts = {name: _part(getattr(self._backend, name)) for name in _PARTS}
        parts |= self._bare_parts if continuation else {}
        variant = Backend.from_str(json.dumps(parts | _EMPTY))
        variant.model = self._backend.model
        marks = frozenset() if parse_marks else self.marks.ids
        added = sorted(self._backend.get_added_tokens_decoder().items())
        variant.add_tokens([_with_special(token) if index in marks else token for index, token in added])
        variant.encode_special_tokens = not parse_special
        return variant

    @cached_property
    def _bare_parts(self) -> dict[str, Any]:
        """Normalizer and pre-tokenizer for the middle of a text: nothing is put before a segment."""
        return {name: _unprefixed(_part(getattr(self._backend, name))) for name in _PREFIXING}

    @cached_property
    def _has_dummy_prefix(self) -> bool:
        return any(_part(getattr(self._backend, name)) != part for name, part in self._bare_parts.items())

    # ids to text

    def decode(self, ids: Sequence[int] | np.ndarray, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids` as a continuation; if they begin with the prefix, without the dummy space."""
        tokens = [int(i) for i in ids]
        if not self.exact_bytes:
            return self.backend_decode(tokens, skip_special_tokens)
        table = self.visible_bytes(skip_special_tokens)
        text = b"".join([table[i] for i in tokens]).decode("utf-8", "replace")
        return self._undo_dummy_space(text, tokens) if self._has_dummy_prefix else text

    def _undo_dummy_space(self, text: str, tokens: list[int]) -> str:
        shown = "".join(self.token_bytes[i].decode("utf-8", "replace") for i in self.prefix_ids)
        if not self.prefix_ids or tuple(tokens[: len(self.prefix_ids)]) != self.prefix_ids:
            return text
        head = shown if text.startswith(shown) else ""
        return head + text[len(head) :].removeprefix(" ")

    def visible_bytes(self, skip_special_tokens: bool) -> list[bytes]:
        """`token_bytes`, with b"" for special tokens if they are to be skipped."""
        return self._visible if skip_special_tokens else self.token_bytes

    def detokenizer(self, skip_special_tokens: bool = True) -> Any:
        """Return a new incremental `sgl.runtime.text.detokenizer.Detokenizer`."""
        return detokenizer(self, skip_special_tokens)

    def backend_decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """What the tokenizers library says the text is."""
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def decode_stream(self, skip_special_tokens: bool) -> Callable[[int], str | None]:
        """The library's incremental decoder as a function of the next id; None while nothing is complete."""
        stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        return lambda token_id: stream.step(self._backend, token_id)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token's string, e.g. "<|im_end|>"."""
        return self._backend.token_to_id(token)

    # chat

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the template for conversations without tools."""
        return chat.source if (chat := self._chats.get("default")) else None

    @property
    def tools_template(self) -> ChatTemplate | None:
        """The chat template for conversations with tools."""
        return self._chats.get("tool_use", self._chats.get("default"))

    @property
    def response_template(self) -> Mapping[str, Any] | None:
        """Of tokenizer_config.json: how the checkpoint says that its answers are read; None where it says nothing."""
        return self._config.get("response_template")

    @property
    def chat_sources(self) -> list[str]:
        """The Jinja sources of all chat templates."""
        return [chat.source for chat in self._chats.values()]

    @property
    def chat_variables(self) -> frozenset[str]:
        """The variables that the templates read, such as `messages`, `tools` or `enable_thinking`, without special
        tokens.
        """
        return frozenset().union(*(chat.variables for chat in self._chats.values()))

    @property
    def chat_inputs(self) -> frozenset[str]:
        """Those of `chat_variables` that no template sets itself before it reads them."""
        return frozenset().union(*(chat.inputs for chat in self._chats.values()))

    def render_chat(
        self, messages: Iterable[Mapping[str, Any]], add_generation_prompt: bool = False, **variables: Any
    ) -> str:
        """Render a conversation with the model's chat template; `variables` are passed to it (`tools=[...]`).

        Raises:
            ConfigError: there is no template, or it rejects the messages.
        """
        known = {"tools": None, "documents": None}
        chat = self._chat_for(variables.get("tools") is not None)
        return chat.render(messages, add_generation_prompt, **(known | variables))

    def chat_traits(self, tools: bool = False) -> TemplateTraits:
        """What the chat template does with roles, parts, tools and calls. tools: of the template for their use, if it
        shows them.

        Raises:
            ConfigError: there is no template.
        """
        traits = self._traits_of(self._chat_for(tools))
        return traits if traits.tools == "tools" or not tools else self._traits_of(self._chat_for(False))

    def chat_messages(self, messages: Sequence[Mapping[str, Any]], tools: bool = False) -> list[dict[str, Any]]:
        """The messages with roles and contents (a text, or text parts) in the form that the chat template shows.

        Raises:
            ConfigError: there is no template, or it leaves out a message of that role in that place.
        """
        traits = self.chat_traits(tools)
        return with_contents(with_roles(messages, traits, tools), traits, tools)

    def _traits_of(self, chat: ChatTemplate) -> TemplateTraits:
        if chat.source not in self._traits:
            self._traits[chat.source] = TemplateTraits(chat)
        return self._traits[chat.source]

    def _chat_for(self, tools: bool) -> ChatTemplate:
        """With tools the template for their use, where the checkpoint has one."""
        chat = self._chats.get("tool_use" if tools and "tool_use" in self._chats else "default")
        if chat is None and self._chats:
            raise ConfigError(
                f"of this tokenizer's chat templates ({', '.join(sorted(self._chats))}) none is the default; give one: "
                "Engine(chat_template=...)"
            )
        if chat is None:
            raise ConfigError(f"this tokenizer has no chat template; {self.without_template}")
        return chat

    def encode_chat(
        self, messages: Iterable[Mapping[str, Any]], add_generation_prompt: bool = False, **variables: Any
    ) -> np.ndarray:
        """Return the token ids of a conversation, int32 [n].

        Special tokens in its texts stay text. See `render_chat`.
        """
        quotation = QuotedConversation(self, (list(messages), variables))
        safe, safe_variables = quotation.value
        text = self.render_chat(safe, add_generation_prompt, **safe_variables)
        return quotation.encode(text, special_prefix=True)

    @cached_property
    def marks(self) -> SpecialTokenMarks:
        """What the texts of a conversation must not become."""
        return SpecialTokenMarks(self, self._backend.get_added_tokens_decoder())

    # special tokens

    def _special_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)

    def _merged_eos(self, declared: Iterable[int]) -> tuple[int, ...]:
        own = self._special_id("eos_token")
        found = [*declared, *([] if own is None else [own])]
        return tuple(dict.fromkeys(i for i in found if 0 <= i < self.vocab_size))

    def _ask_prefix(self) -> tuple[int, ...]:
        """The post-processor's prefix of a text; its suffix is left out, as texts go on."""
        probe = next((text for text in self._probes() if self._backend.encode(text, add_special_tokens=False).ids), "")
        plain = self._backend.encode(probe, add_special_tokens=False).ids
        dressed = self._backend.encode(probe, add_special_tokens=True).ids
        if beyond := [i for i in dressed if i >= self.vocab_size]:
            raise ConfigError(
                f"tokenizer.json: its post_processor puts the token {beyond[0]:,} before texts, which is none of "
                f"{self.vocab_size:,}; mend it"
            )
        starts = (i for i in range(len(dressed) + 1) if dressed[i : i + len(plain)] == plain)
        return tuple(dressed[: next(starts, 0)])

    def _probes(self) -> Iterator[str]:
        """Texts that a vocabulary may know."""
        yield _PROBE
        yield from (
            token.decode("utf-8", "ignore") for i, token in enumerate(self.token_bytes) if i not in self.special_ids
        )


def _ids_of(backend: Backend, text: str) -> list[int]:
    """A batch gives the interpreter's lock away, one text does not."""
    if len(text) < _LONG:
        return backend.encode(text, add_special_tokens=False).ids
    return backend.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _declared_ids(folder: Path, name: str) -> list[int]:
    """An id or ids of generation_config.json and config.json, in that order."""
    generation, config = (read_json(folder / file) for file in ("generation_config.json", "config.json"))
    ids: list[int] = []
    for file, source in (
        ("generation_config.json", generation),
        ("config.json", config),
        ("config.json", config.get("text_config") or {}),
    ):
        value = source.get(name)
        found = value if isinstance(value, list) else [] if value is None else [value]
        if any(not isinstance(i, int) or isinstance(i, bool) or i >= MOST_TOKENS for i in found):
            raise wrong(folder / file, name, value, f"a token id below {MOST_TOKENS:,} or a list of them")
        ids += found
    return ids


def compiled_templates(config: Mapping[str, Any]) -> dict[str, ChatTemplate]:
    """The chat templates of a tokenizer's config, by name. Raises ConfigError for one that cannot be used."""
    sources, special_tokens = named_templates(config), _special_tokens(config)
    require_short(sources.values())
    return {name: ChatTemplate(source, special_tokens) for name, source in sources.items()}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like, as templates see them."""
    found: dict[str, str] = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _part(component: Any) -> dict[str, Any] | None:
    """A component of the tokenizer as it stands in tokenizer.json."""
    return None if component is None else json.loads(component.__getstate__())


def _with_special(token: AddedToken) -> AddedToken:
    return AddedToken(**{name: getattr(token, name) for name in FLAGS} | {"special": True})


def _unprefixed(step: dict[str, Any] | None) -> dict[str, Any] | None:
    if step is None or step["type"] in ("Prepend", "Strip"):
        return None
    changed = dict(step)
    for parts in ("normalizers", "pretokenizers"):
        if parts in step:
            changed[parts] = [part for part in map(_unprefixed, step[parts]) if part is not None]
    if step["type"] == "Metaspace":
        changed["prepend_scheme"] = "never"
    if step["type"] == "ByteLevel":
        changed["add_prefix_space"] = False
    return changed

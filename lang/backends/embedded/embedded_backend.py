"""Programs on an Engine in the same process."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgl.runtime.sampling.sampling_params import SAMPLING_OPTIONS, SamplingParams

from ...backend import Backend, GenRequest
from ...chat import ChatTemplate, get_chat_template, match_chat_template
from ...chat.tokenizer_chat_template import JinjaChatTemplate
from ...global_config import global_config
from ...sampling.options import SamplingOptions
from .embedded_stream import EmbeddedStream
from .meta_info import token_text

if TYPE_CHECKING:
    from sgl.grammars import Grammar, SchemaOptions
    from sgl.runtime.engine import Engine

_NAMES = [(name, option.program) for name, option in SAMPLING_OPTIONS.items() if option.program]
MANY = 256  # sampling parameters that are kept; those with a seed are used once and not kept


class EmbeddedBackend(Backend):
    """Opens one Sequence of the engine for each state and keeps it for the state's whole life.

    `hf_chat_template` is what was assigned here or to the engine's `hf_chat_template`, else the tokenizer's own, else
    the known template that matches the model's path, else `default`.
    """

    masks_logprobs = True
    shows_prompt_token = (
        False  # in a select's input_token_logprobs, the prompt's last token before those of each choice
    )

    def __init__(self, engine: Engine, chat_template: ChatTemplate | None = None) -> None:
        self.engine = engine
        self.tokenizer = engine.tokenizer
        self._template = chat_template
        self._special_stops: dict[str, int | None] = {}
        self._known_params: dict[tuple[Any, ...], SamplingParams] = {}

    @classmethod
    def of(cls, engine: Engine) -> EmbeddedBackend:
        """The backend of an engine: the same one as long as anybody holds it."""
        backend = _of_engine.get(id(engine))
        if backend is None or backend.engine is not engine:
            backend = _of_engine.setdefault(id(engine), cls(engine))
        return backend

    def open(self) -> EmbeddedStream:
        return EmbeddedStream(self, self.engine.open())

    def open_adapted(self, adapter: str) -> EmbeddedStream:
        return EmbeddedStream(self, self.engine.open(adapter=adapter), adapter=adapter)

    def get_model_name(self) -> str:
        return str(self.engine.model_path)

    @property
    def chat_template(self) -> ChatTemplate:
        return self._template or getattr(self.engine, "chat_template", None) or self._found_template

    @chat_template.setter
    def chat_template(self, template: ChatTemplate) -> None:
        self._template = template

    def get_chat_template(self) -> ChatTemplate:
        return self.chat_template

    def flush_cache(self) -> int:
        return self.engine.flush_cache()

    def get_server_info(self) -> dict[str, Any]:
        info = dict(self.engine.info())
        return {
            "tokenizer_path": self.engine.model_path,
            "version": _version(),
            "max_total_num_tokens": info.get("kv_tokens"),
            "internal_states": [self.engine.stats()],
            **info,
        }

    def shutdown(self) -> None:
        self.engine.close()

    def prepare(self, options: SamplingOptions) -> None:
        self.grammar(options)

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        return [token_text(self.tokenizer.token_bytes, token) for token in token_ids]

    # --- for its streams ---------------------------------------------------------------------------------

    @cached_property
    def deciders(self) -> ThreadPoolExecutor:
        """Threads on which selects are decided and what follows them is tokenised, off the scheduler's."""
        return ThreadPoolExecutor(2, thread_name_prefix="sgl-select")

    @property
    def start_token(self) -> int:
        """What precedes a text that begins with a generation: BOS, else the token that ends texts."""
        tokenizer = self.tokenizer
        return tokenizer.bos_id if tokenizer.bos_id is not None else next(iter(tokenizer.eos_ids), 0)

    def sampling_params(self, request: GenRequest) -> SamplingParams:
        """The runtime's parameters for a request. Raises ConfigError for a bad value."""
        key = (request.options, request.template_stops, global_config.skip_special_tokens_in_output)
        try:
            return self._known_params[key]
        except (KeyError, TypeError):  # new, or a logit_bias, which has no hash
            params = self._make_params(request)
        if request.options.seed is None and request.options.logit_bias is None and len(self._known_params) < MANY:
            self._known_params[key] = params
        return params

    def _make_params(self, request: GenRequest) -> SamplingParams:
        options = request.options
        ids = [self._special_id(stop) for stop in request.stops]
        given = {name: value for name, program in _NAMES if (value := getattr(options, program)) is not None}
        params = SamplingParams(
            **given
            | {
                "max_tokens": options.max_new_tokens,
                "stop": tuple(stop for stop, token in zip(request.stops, ids, strict=True) if token is None),
                "stop_token_ids": (*(options.stop_token_ids or ()), *(token for token in ids if token is not None)),
                "skip_special_tokens": global_config.skip_special_tokens_in_output,
                "top_logprobs": (options.top_logprobs_num or 0) if options.return_logprob else 0,
            }
        )
        params.validate()
        return params

    def grammar(self, options: SamplingOptions) -> Grammar | None:
        """The compiled constraint of a gen, or None. Raises sgl.grammars.GrammarError."""
        if options.json_schema is not None:
            return self._compiled("JSON schema", options.json_schema, self._json_options)
        if options.pattern is not None:
            return self._compiled("regex", options.pattern)
        if options.ebnf is not None:
            return self._compiled("ebnf", options.ebnf)
        if options.structural_tag is not None:
            return self._compiled("structural tag", options.structural_tag, self._json_options)
        return None

    def _compiled(self, kind: str, source: str, options: SchemaOptions | None = None) -> Grammar:
        from sgl.grammars.compile import GrammarRecipe

        return GrammarRecipe.of(kind, source, options).compile(self.engine.vocabulary)

    @cached_property
    def _json_options(self) -> SchemaOptions:
        from sgl.grammars import SchemaOptions

        return SchemaOptions.of(self.engine.config.json_options or {})

    def _special_id(self, stop: str) -> int | None:
        """The id of a stop that is one special token: it never appears in the text, only among the tokens."""
        if stop not in self._special_stops:
            ids = self.tokenizer.encode(stop).tolist()
            special = len(ids) == 1 and ids[0] in self.tokenizer.special_ids
            self._special_stops[stop] = ids[0] if special else None
        return self._special_stops[stop]

    @cached_property
    def _found_template(self) -> ChatTemplate:
        if self.tokenizer.chat_template:
            return JinjaChatTemplate(self.tokenizer)
        return match_chat_template(model_name_of(self.engine.model_path)) or get_chat_template("default")


_of_engine: weakref.WeakValueDictionary[int, EmbeddedBackend] = weakref.WeakValueDictionary()


def model_name_of(path: str) -> str:
    """The part of a model path that has its name: the hub id of a cached snapshot, else the last two folders."""
    parts = Path(path).parts
    hub = [part for part in parts if part.startswith("models--")]
    return hub[-1].removeprefix("models--").replace("--", "/") if hub else "/".join(parts[-2:])


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sgl")
    except PackageNotFoundError:
        return "not installed"

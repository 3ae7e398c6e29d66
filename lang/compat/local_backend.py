"""A model in this process as programs under the alias see it: its engine, its template, its name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..backends.embedded.embedded_backend import EmbeddedBackend
from ..chat import get_chat_template
from .server_args import ServerArgs
from .sglang_alias_settings import choose_model
from .shared_engines import EngineHold, engines


class LocalBackend(EmbeddedBackend):
    """An embedded engine with the attributes that programs read of an endpoint.

    Loads `args.model_path`, or its replacement. `close()` gives the engine back.
    """

    support_concate_and_append = True  # texts of forks may be put together
    shows_prompt_token = True  # as programs count on that read the rows of a select

    def __init__(self, args: ServerArgs, base_url: str, chat_template_name: str | None = None) -> None:
        choice = choose_model(args.model_path)
        self.hold: EngineHold = engines.take(choice.path, args.engine_options(choice.replaced))
        name = chat_template_name or args.chat_template
        super().__init__(self.hold.engine, get_chat_template(name) if name else None)
        self.base_url = base_url
        self.api_key: str | None = None
        self.verify: str | None = None

    @property
    def model_info(self) -> dict[str, Any]:
        """What a server says of its model."""
        path = self.get_model_name()
        return {"model_path": path, "tokenizer_path": path, "is_generation": True}

    def start_profile(self) -> None:
        """Nothing to profile from here: the engine's numbers are in get_server_info()."""

    def stop_profile(self) -> None:
        """See start_profile."""

    def close(self) -> None:
        self.hold.release()

    shutdown = close


def hugging_face_tokenizer(path: str, **options: Any) -> Any:
    """The tokenizer object of transformers, which programs call for its chat template and its ids.

    Python of the checkpoint is run where `trust_remote_code=True` is given, never by a question on the terminal.
    """
    trusted = options.pop("trust_remote_code", False) is True
    return import_module("transformers").AutoTokenizer.from_pretrained(path, trust_remote_code=trusted, **options)

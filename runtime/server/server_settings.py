"""The options of a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sgl.runtime.errors import ConfigError

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+")


LIMITS, SHARING, WATCHING = "limits", "sharing", "watching"  # groups of flags


def setting(
    default: Any, doc: str, value: str | None = "", group: str = "", flag: str = "", variable: str | None = None
) -> Any:
    """A field, and the flag of `sgl serve` that gives it.

    doc: what it is, and what stands for its default where that says nothing. value: what the flag's value is called;
    None: there is no flag. flag: where it is not the field's name. variable: of the environment, read without the flag.
    """
    metadata = {"doc": doc, "value": value, "group": group, "flag": flag, "variable": variable}
    return (
        field(default_factory=dict, metadata=metadata) if default == {} else field(default=default, metadata=metadata)
    )


@dataclass(frozen=True)
class ServerSettings:
    """Options of a server, each as a flag of `sgl serve`. Invalid values raise a ConfigError that names them."""

    host: str = setting("127.0.0.1", "address to listen on", "HOST")
    port: int = setting(30000, "port to listen on; 0 takes a free one", "PORT")
    api_keys: frozenset[str] = setting(
        frozenset(), "require this key in requests", "KEY", flag="--api-key", variable="SGL_API_KEY"
    )
    # None: no separate key, and those routes are refused where several API keys are isolated
    admin_key: str | None = setting(
        None,
        "require this key for /adapters/load, /adapters/unload, /adapters and /flush_cache",
        "KEY",
        variable="SGL_ADMIN_KEY",
    )
    allowed_adapters: Mapping[str, tuple[str, ...]] = setting(
        {},
        "the adapters that an API key may name, separated by commas (default: all)",
        "KEY=NAMES",
        flag="--allow-adapters",
    )
    served_name: str | tuple[str, ...] | None = setting(
        None, "the model's name in answers, of several the requested one (default: the directory's name)", "NAME"
    )
    tool_format: str | None = setting(
        None, "format of the model's tool calls, such as hermes (default: by the model's name or template)", "NAME"
    )
    reasoning_format: str | None = setting(
        None, "format of the model's reasoning, such as qwen3 (default: by the model's name or template)", "NAME"
    )
    max_body_bytes: int = setting(10_000_000, "largest request body", "N", LIMITS)
    max_open_bytes: int = setting(
        64_000_000, "total size of bodies being received; further ones wait, then are refused with 503", "N", LIMITS
    )
    max_prompt_tokens: int | None = setting(
        None, "most tokens of a prompt (default: as many as the context holds)", "N", LIMITS
    )
    max_new_tokens: int | None = setting(
        None, "most tokens of an answer, and the default; requests for more are refused", "N", LIMITS
    )
    max_choices: int = setting(64, "most samples of one prompt", "N", LIMITS)
    request_timeout: float | None = setting(None, "abort requests after this time (default: never)", "SECONDS", LIMITS)
    max_queue: int | None = setting(
        None,
        "most samples running or waiting; further requests get status 429 (default: 4 times max_running)",
        "N",
        SHARING,
    )
    tenant_share: float | None = setting(
        None, "largest share of that queue for one API key (default: 0.5 with several keys)", "SHARE", SHARING
    )
    isolate: bool | None = setting(
        None, "share cached prefixes only within an API key (default: with several keys)", "", SHARING
    )
    store_bytes: int = setting(64_000_000, "memory for stored answers of /v1/responses; 0: none", "N", SHARING)
    cors_origins: tuple[str, ...] = setting(
        (),
        "allow browser pages of this origin to use the server, * for all (default: none)",
        "ORIGIN",
        SHARING,
        "--cors-origin",
    )
    allow_priority: bool = setting(False, "let requests set their priority", "", SHARING)
    page: bool = setting(True, "serve the status page at /", "", WATCHING)
    metrics: bool = setting(True, "serve GET /metrics", "", WATCHING)
    open_metrics: bool = setting(False, "serve /metrics without an API key", "", WATCHING)
    log_requests: str | None = setting(
        None, "log one JSON line per request; - is standard output (default: no log)", "FILE", WATCHING
    )
    log_content: bool = setting(False, "include prompts and answers in the log", "", WATCHING)
    trace: bool = setting(False, "emit OpenTelemetry spans; configure them with the OTEL_ variables", "", WATCHING)
    adapters: str | None = setting(
        None, "folder of adapters: clients name the folders in it as models, which are loaded when asked for", None
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port} must be in 0..65535")
        for name in (
            "max_body_bytes",
            "max_open_bytes",
            "max_prompt_tokens",
            "max_new_tokens",
            "max_choices",
            "max_queue",
            "request_timeout",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:  # nan is not
                raise ConfigError(f"{name}={value} must be above 0")
        if self.store_bytes < 0:
            raise ConfigError(f"store_bytes={self.store_bytes} must be 0 or more")
        if any(
            not key or key != key.strip() or not key.isascii()
            for key in (*self.api_keys, *([] if self.admin_key is None else [self.admin_key]))
        ):
            raise ConfigError("an API key must be ASCII text without spaces around it, and not empty")
        if self.admin_key in self.api_keys:
            raise ConfigError("admin_key is one of api_keys too; take another one, which clients do not know")
        for origin in self.cors_origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"cors_origins has {origin!r}; an origin is like https://example.org or http://localhost:3000, or *"
                )
        if self.tenant_share is not None and not 0 < self.tenant_share <= 1:
            raise ConfigError(f"tenant_share={self.tenant_share} must be above 0 and up to 1")
        if self.adapters is not None and not Path(self.adapters).is_dir():
            raise ConfigError(f"adapters={self.adapters}: there is no such folder")
        if strange := [key for key in self.allowed_adapters if key not in self.api_keys]:
            raise ConfigError(f"allowed_adapters has {len(strange)} keys that are none of api_keys")
        if self.log_content and self.log_requests is None:
            raise ConfigError("log_content says what goes into the request log; give log_requests too")

    @property
    def served_names(self) -> tuple[str, ...]:
        """Empty where the model has the name of its directory."""
        return (self.served_name,) if isinstance(self.served_name, str) else self.served_name or ()

    @property
    def local(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in ("127.0.0.1", "::1", "localhost")

    @property
    def isolated(self) -> bool:
        return len(self.api_keys) > 1 if self.isolate is None else self.isolate

    @property
    def share(self) -> float:
        """The share of the queue that one API key may have."""
        return self.tenant_share or (0.5 if len(self.api_keys) > 1 else 1.0)

"""The options of a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sgl.runtime.errors import ConfigError

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+")


@dataclass(frozen=True)
class ServerSettings:
    """Options of a server. Invalid values raise a ConfigError that names them.

    host, port         address to listen on; port 0 takes a free one
    api_keys           requests must send one of them; with none, the server is open to everyone who can reach it
    admin_key          asked for by the routes that change what all share (adapters, the cache); None: no separate
                       key, and they are refused where several API keys are isolated
    served_name        the model's name in answers, or several names, of which an answer has the requested one; None:
                       the directory's name
    max_body_bytes     largest request body
    max_open_bytes     total size of bodies being received; further ones wait, then are refused with 503
    max_prompt_tokens  most tokens of a prompt; None: as many as the context holds
    max_new_tokens     most tokens of an answer, and the default; requests for more are refused; None: the
                       context's limit
    max_choices        most samples of one prompt
    request_timeout    seconds after which a request is aborted; None: never
    tool_format        format of tool descriptions and calls, such as "hermes"; None: by the model's name or template
    reasoning_format   format of the model's reasoning, such as "qwen3"; None: by the model's name or template
    max_queue          most samples running or waiting in the engine; more are refused; None: 4 times max_running
    tenant_share       largest share of max_queue for one API key; None: all of it with one key, else half
    isolate            share cached prefixes only within an API key; None: if there are two or more keys
    allow_priority     requests may set their priority
    store_bytes        memory for stored answers of /v1/responses; 0: none are stored
    cors_origins       origins whose browser pages may use the server, such as "http://localhost:3000"; "*": all
    page               serve the status page at /
    metrics            serve /metrics
    open_metrics       serve /metrics without an API key
    log_requests       file for one JSON line per request, "-" is standard output; None: no log
    log_content        include prompts and answers in these lines
    adapters           folder of adapters; clients name the folders in it as models, and they are loaded when
                       they are asked for
    allowed_adapters   the adapters that an API key may name, by key; keys that are not in it may name all
    trace              send spans to OpenTelemetry's exporter, configured by its environment variables
    """

    host: str = "127.0.0.1"
    port: int = 30000
    api_keys: frozenset[str] = frozenset()
    admin_key: str | None = None
    served_name: str | tuple[str, ...] | None = None
    max_body_bytes: int = 10_000_000
    max_open_bytes: int = 64_000_000
    max_prompt_tokens: int | None = None
    max_new_tokens: int | None = None
    max_choices: int = 64
    request_timeout: float | None = None
    tool_format: str | None = None
    reasoning_format: str | None = None
    max_queue: int | None = None
    tenant_share: float | None = None
    isolate: bool | None = None
    allow_priority: bool = False
    store_bytes: int = 64_000_000
    cors_origins: tuple[str, ...] = ()
    page: bool = True
    metrics: bool = True
    open_metrics: bool = False
    log_requests: str | None = None
    log_content: bool = False
    trace: bool = False
    adapters: str | None = None
    allowed_adapters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

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

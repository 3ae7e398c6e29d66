"""What a server is told when it starts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sgl.runtime.errors import ConfigError

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+")


@dataclass(frozen=True)
class ServerSettings:
    """Options of a server. Values that cannot be are refused with a ConfigError that names them.

    host, port         where it listens; port 0 takes a free one
    api_keys           any of them opens the server; none: it is open to whoever reaches it
    served_name        the model's name in answers, or several, of which each answer has the one that was asked for; None: the
                       name of its directory
    max_body_bytes     longest body of a request
    max_open_bytes     of all bodies together that have not been read yet; beyond it they wait, then are refused with 503
    max_prompt_tokens  longest prompt; None: what the context holds
    max_new_tokens     longest answer: who asks for more is refused, who does not say gets so many; None: the context
    max_choices        most samples of one prompt
    request_timeout    seconds after which a request is given up; None: never
    tool_format        how the model is told of tools and calls them, such as "hermes"; None: as its name or template say
    reasoning_format   how the model marks its thoughts, such as "qwen3"; None: as its name or template say
    max_queue          most samples that run or wait in the engine, more are refused; None: 4 for each it can run at once
    tenant_share       share of max_queue that one API key may have; None: all where there is one key, else half
    isolate            whether an API key reuses only prefixes that it computed; None: where there are two or more keys
    allow_priority     whether requests may say how urgent they are
    store_bytes        of the answers of /v1/responses that are kept for clients to come back to; 0: none are
    cors_origins       sites whose pages may ask this server from a browser, such as "http://localhost:3000"; "*": all
    page               whether there is a page at /
    metrics            whether there is /metrics
    open_metrics       whether it is open to those without an API key
    log_requests       file to which one line of JSON goes for each request, "-" is the standard output; None: nowhere
    log_content        whether these lines hold prompts and answers
    trace              whether spans go to OpenTelemetry's exporter, by its environment variables
    """

    host: str = "127.0.0.1"
    port: int = 30000
    api_keys: frozenset[str] = frozenset()
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

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port} must lie in 0..65535")
        for name in ("max_body_bytes", "max_open_bytes", "max_prompt_tokens", "max_new_tokens", "max_choices", "max_queue", "request_timeout"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name}={value} must be above 0")
        if self.store_bytes < 0:
            raise ConfigError(f"store_bytes={self.store_bytes} must be 0 or more")
        if any(not key or key != key.strip() or not key.isascii() for key in self.api_keys):
            raise ConfigError("an API key must be ASCII text without spaces around it, and not empty")
        for origin in self.cors_origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise ConfigError(f"cors_origins has {origin!r}; an origin is like https://example.org or http://localhost:3000, or *")
        if self.tenant_share is not None and not 0 < self.tenant_share <= 1:
            raise ConfigError(f"tenant_share={self.tenant_share} must be above 0 and up to 1")
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

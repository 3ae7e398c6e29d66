"""What a server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from sgl.runtime.errors import ConfigError


@dataclass(frozen=True)
class ServerSettings:
    """Options of a server. Values that cannot be are refused with a ConfigError that names them.

    host, port         where it listens; port 0 takes a free one
    api_keys           any of them opens the server; none: it is open to whoever reaches it
    served_name        the model's name in answers; None: the name of its directory
    max_body_bytes     longest body of a request
    max_prompt_tokens  longest prompt; None: what the context holds
    max_new_tokens     longest answer: one that may be longer ends there, as at its own limit; None: the context
    max_choices        most samples of one prompt
    request_timeout    seconds after which a request is given up; None: never
    """

    host: str = "127.0.0.1"
    port: int = 30000
    api_keys: frozenset[str] = frozenset()
    served_name: str | None = None
    max_body_bytes: int = 10_000_000
    max_prompt_tokens: int | None = None
    max_new_tokens: int | None = None
    max_choices: int = 64
    request_timeout: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port} must lie in 0..65535")
        for name in ("max_body_bytes", "max_prompt_tokens", "max_new_tokens", "max_choices", "request_timeout"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name}={value} must be above 0")
        if any(not key or key != key.strip() or not key.isascii() for key in self.api_keys):
            raise ConfigError("an API key must be ASCII text without spaces around it, and not empty")

"""`RuntimeEndpoint(url)` of programs under the alias: a server over HTTP, or the engine in this process."""

from __future__ import annotations

import json
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from .local_backend import LocalBackend
from .server_args import ServerArgs
from .server_process_stand_ins import launched_at
from .sglang_alias_settings import print_once, settings
from .sglang_runtime import by_url

PROBE_SECONDS = 1.0


class RuntimeEndpoint(LocalBackend):
    """What `RuntimeEndpoint(base_url)` gives, by `settings` and by the URL:

    the `--backend` URL of `sgl run`, whatever the program names; a Runtime of this process, if the URL is its
    own; under `sgl run` the embedded engine, unless a server answers at the URL; else the server at the URL.
    """

    def __new__(
        cls,
        base_url: str,
        api_key: str | None = None,
        verify: str | None = None,
        chat_template_name: str | None = None,
    ) -> Any:
        if base_url in by_url:
            return by_url[base_url].endpoint
        if settings.url is None and settings.local and not answers(base_url):
            return super().__new__(cls)
        from ..backends.native.runtime_endpoint import RuntimeEndpoint as HttpEndpoint

        endpoint = HttpEndpoint(_chosen_url(base_url), api_key, verify, chat_template_name)
        endpoint.shows_prompt_token = True
        return endpoint

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | None = None,
        chat_template_name: str | None = None,
    ) -> None:
        launched = launched_at(base_url)
        if launched is None:
            print_once(f"nothing answers at {base_url}: the embedded engine does")
        super().__init__(launched or ServerArgs(), base_url, chat_template_name)
        self.api_key, self.verify = api_key, verify


def answers(base_url: str) -> bool:
    """Whether a server that makes texts is at the URL."""
    if launched_at(base_url) is not None:
        return False
    try:
        with urllib.request.urlopen(f"{base_url.rstrip('/')}/get_model_info", timeout=PROBE_SECONDS) as reply:
            return "model_path" in json.loads(reply.read())
    except (OSError, ValueError, TypeError):
        return False


def _chosen_url(base_url: str) -> str:
    """The URL that `sgl run --backend` names, else the program's."""
    if settings.url is None or urlsplit(base_url)[:3] == urlsplit(settings.url)[:3]:
        return settings.url or base_url
    print_once(f"{settings.url} stands in for {base_url}")
    return settings.url

"""Programs on Vertex AI, over its endpoint of OpenAI's protocol."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from ...chat import ChatTemplate
from ...errors import BadValueError
from ..openai.openai_backend import OpenAI
from .provider_sdk import require

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class VertexAI(OpenAI):
    """A Gemini model (or "publisher/model") of a Google Cloud project.

    The project is GCP_PROJECT_ID, the region GCP_LOCATION, unless `base_url` names the endpoint.
    `safety_settings` are sent as the service's own option. `token` gives an access token when one is needed;
    without it the package google-auth finds the credentials of the machine (`pip install google-auth requests`).
    Other options are those of OpenAI.

    The tests run it against a server of the same protocol on this machine; against Google's service it has not
    been run.
    """

    def __init__(
        self,
        model_name: str,
        safety_settings: list[dict[str, str]] | None = None,
        *,
        token: Callable[[], str] | None = None,
        base_url: str | None = None,
        chat_template: ChatTemplate | str | None = None,
        **options: Any,
    ) -> None:
        extra = dict(options.pop("extra_body", None) or {})
        if safety_settings is not None:
            extra["google"] = {**extra.get("google", {}), "safety_settings": safety_settings}
        super().__init__(
            model_name if "/" in model_name else f"google/{model_name}",
            True,
            chat_template,
            api_key=_fresh_key(token or GoogleToken()),
            base_url=base_url or _endpoint(model_name),
            extra_body=extra,
            **options,
        )


class GoogleToken:
    """The access token of the machine's credentials, renewed when it has run out. Called in threads."""

    def __init__(self) -> None:
        auth = require("google.auth", "openai", " google-auth requests")
        self._request: Any = require("google.auth.transport.requests", "openai", " google-auth requests").Request()
        self._credentials, _ = auth.default(scopes=[_SCOPE])

    def __call__(self) -> str:
        if not self._credentials.valid:
            self._credentials.refresh(self._request)
        return str(self._credentials.token)


def _fresh_key(token: Callable[[], str]) -> Any:
    async def key() -> str:
        return await asyncio.to_thread(token)

    return key


def _endpoint(model_name: str) -> str:
    project, region = os.environ.get("GCP_PROJECT_ID"), os.environ.get("GCP_LOCATION")
    if not (project and region):
        raise BadValueError(
            f"VertexAI({model_name!r}): set GCP_PROJECT_ID and GCP_LOCATION, or pass base_url= (they are "
            f"{project!r} and {region!r})"
        )
    host = "aiplatform.googleapis.com" if region == "global" else f"{region}-aiplatform.googleapis.com"
    return f"https://{host}/v1/projects/{project}/locations/{region}/endpoints/openapi"

"""/openapi.json: what the routes declare, and what depends on the server's settings."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from ..protocols.openai_common.openai_request_setup import ANY_MODEL
from .documented_routes import operation_name
from .middleware import METRICS, OPEN_PATHS

Json = dict[str, Any]


class DocumentedApp(FastAPI):
    """Its `state.models`, `state.adapters` and `state.settings` are in the document."""

    _document: Json | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, generate_unique_id_function=operation_name)

    def openapi(self) -> Json:
        document = super().openapi()
        if self._document is not document:
            self._complete(document)
            self._document = document
        return document

    def _complete(self, document: Json) -> None:
        schemas: dict[str, Json] = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):  # this server answers 400, in words
            schemas.pop(name, None)
        for schema in schemas.values():
            if schema.get("additionalProperties") is False and "model" in schema["properties"]:
                schema["properties"]["model"] = self._model_names()
        settings = self.state.settings
        open_paths = OPEN_PATHS | (METRICS if settings.open_metrics else set())
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                if settings.api_keys and path not in open_paths:
                    operation["security"] = [{"key": []}]
                else:
                    operation["responses"].pop("401")
        if settings.api_keys:
            document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}

    def _model_names(self) -> Json:
        """What the field `model` of a request takes."""
        if self.state.adapters.possible:
            return {"type": ["string", "null"], "title": "Model"}
        return {"enum": [*self.state.models, *ANY_MODEL, None], "title": "Model"}

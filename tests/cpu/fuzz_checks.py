"""What schemathesis checks besides its own: no answer tells of the server's files, and errors have the protocol's
shape.

Loaded by `schemathesis run` through SCHEMATHESIS_HOOKS, and used by test_server_fuzz.py.
"""

from __future__ import annotations

import json
import re

import schemathesis

from sgl.runtime.server.http.api_error_formats import ANTHROPIC_PATH, NATIVE_PATHS, OLLAMA_PATH

LEAKS = re.compile(r"Traceback|site-packages|File \\?\"/|/(?:work|home|root|usr)/|\.py\b")
OPENAI_FIELDS, NATIVE_FIELDS = {"message", "type", "param", "code"}, {"message"}


def check_answer(path: str, status: int, body: bytes) -> None:
    """AssertionError for a server error, for an error of another shape, and for words that tell of files."""
    text = body.decode()
    assert status < 500, f"{status}: {text[:300]}"
    if status < 400:
        return
    assert not LEAKS.search(text), f"tells of the server's files: {text[:300]}"
    answer = json.loads(text)
    error = answer["error"]
    if path.startswith(ANTHROPIC_PATH):
        assert answer.keys() == {"type", "error", "request_id"} and error.keys() == {"type", "message"}, answer
        return
    if path.startswith(OLLAMA_PATH):
        assert answer.keys() == {"error"} and error and isinstance(error, str), answer
        return
    assert error.keys() == (NATIVE_FIELDS if path in NATIVE_PATHS else OPENAI_FIELDS), error
    assert error["message"] and isinstance(error["message"], str)


@schemathesis.check
def answered_in_shape(ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case) -> None:
    if response.headers.get("server") != ["uvicorn"]:  # what is no HTTP at all is answered below the application
        check_answer(case.path, response.status_code, response.content)


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict) -> None:
    """A request that gives the server 5e-324 seconds is answered 504, rightly: no failure to look for."""
    timeout = case.body.get("timeout") if isinstance(case.body, dict) else None
    if isinstance(timeout, int | float) and 0 < timeout < 5:
        case.body["timeout"] = 5.0

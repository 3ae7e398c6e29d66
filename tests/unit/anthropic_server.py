"""A server that speaks Anthropic's messages over the toy model, as strict as the real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from api_loopback import Loopback, events
from api_toy import TOKENIZER, Answer, write
from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse

KNOWN = {
    "model",
    "messages",
    "system",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "stream",
    "metadata",
    "output_config",
    "thinking",
    "tools",
    "tool_choice",
}


class AnthropicServer(Loopback):
    """`script(prompt, body)` gives the text of an answer, or None for the toy model's own.

    `thought` comes before each answer; `refuses` ends them as refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.script: Callable[[str, dict[str, Any]], str | None] = lambda prompt, body: None
        self.usage = [0, 0]
        self.thought, self.refuses = "", False
        self.app.post("/v1/messages")(self._messages)

    def reset(self) -> None:
        super().reset()
        self.script = lambda prompt, body: None
        self.usage = [0, 0]
        self.thought, self.refuses = "", False

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        kinds = {429: "rate_limit_error", 529: "overloaded_error", 400: "invalid_request_error"}
        return {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": message}}

    async def _messages(self, request: Request) -> Any:
        body = await request.json()
        self.record(body, request.headers)
        if problem := _problem(body):
            return JSONResponse(self.error_body(400, problem), 400)
        prompt = _prompt(body)
        answer = write(prompt, body["max_tokens"], body.get("stop_sequences") or (), None, self.script(prompt, body))
        self.usage[0] += len(TOKENIZER.encode(prompt))
        self.usage[1] += answer.completion_tokens
        if self.refuses:
            answer.finish = "refusal"
        if body.get("stream"):
            made = list(_events(body, prompt, answer, self.thought))
            return StreamingResponse(events(made), media_type="text/event-stream")
        content: list[Any] = [{"type": "text", "text": answer.text}]
        if self.thought:
            content.insert(0, {"type": "thinking", "thinking": self.thought, "signature": "s"})
        return JSONResponse(_message(body, prompt, answer, content))


def _problem(body: dict[str, Any]) -> str | None:
    unknown = sorted(body.keys() - KNOWN)
    if unknown:
        return f"{unknown[0]}: Extra inputs are not permitted"
    if not body.get("max_tokens", 0) >= 1:
        return "max_tokens: Input should be greater than or equal to 1"
    if any(message["role"] not in ("user", "assistant") for message in body["messages"]):
        return "messages: unexpected role"
    if not body["messages"] or body["messages"][0]["role"] != "user":
        return "messages: first message must use the user role"
    if any(not _content(message["content"]) for message in body["messages"]):
        return "messages: text content blocks must be non-empty"
    last = body["messages"][-1]
    if last["role"] == "assistant" and _content(last["content"]) != _content(last["content"]).rstrip():
        return "messages: final assistant content cannot end with trailing whitespace"
    if any(not stop.strip() for stop in body.get("stop_sequences") or ()):
        return "stop_sequences: each stop sequence must contain non-whitespace"
    if body.get("temperature", 0) > 1:
        return "temperature: range: 0..1"
    return None


def _prompt(body: dict[str, Any]) -> str:
    text = f"[system]{_content(body['system'])}\n" if body.get("system") else ""
    for message in body["messages"]:
        text += f"[{message['role']}]{_content(message['content'])}\n"
    return text[:-1] if body["messages"][-1]["role"] == "assistant" else text + "[assistant]"


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(
        part["text"] if part["type"] == "text" else f"<{part['type']}:{part['source']['type']}>" for part in content
    )


def _message(body: dict[str, Any], prompt: str, answer: Answer, content: list[Any]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": _reason(answer),
        "stop_sequence": answer.stop_sequence,
        "usage": {"input_tokens": len(TOKENIZER.encode(prompt)), "output_tokens": answer.completion_tokens},
    }


def _reason(answer: Answer) -> str:
    if answer.stop_sequence is not None:
        return "stop_sequence"
    return {"length": "max_tokens", "stop": "end_turn"}.get(answer.finish, answer.finish)


def _events(body: dict[str, Any], prompt: str, answer: Answer, thought: str) -> Iterator[bytes]:
    start = {**_message(body, prompt, answer, []), "stop_reason": None, "stop_sequence": None}
    start["usage"]["output_tokens"] = 0
    yield _event("message_start", message=start)
    if thought:
        block = {"type": "thinking", "thinking": "", "signature": ""}
        yield _event("content_block_start", index=0, content_block=block)
        for part in (thought[:3], thought[3:]):
            yield _event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": part})
        yield _event("content_block_stop", index=0)
    yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    yield _event("ping")
    for token in answer.tokens:
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": token})
    yield _event("content_block_stop", index=0)
    delta = {"stop_reason": _reason(answer), "stop_sequence": answer.stop_sequence}
    yield _event("message_delta", delta=delta, usage={"output_tokens": answer.completion_tokens})
    yield _event("message_stop")


def _event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()

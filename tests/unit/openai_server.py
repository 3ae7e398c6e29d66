"""A server that speaks OpenAI's chat and text completions over the toy model, as strict as the real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from api_loopback import Loopback, events
from api_toy import TOKENIZER, Answer, json_script, logprob, natural_token, score_tokens, write
from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse

KNOWN = {
    "model",
    "messages",
    "prompt",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "n",
    "stop",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "echo",
    "seed",
    "tools",
    "tool_choice",
    "response_format",
    "frequency_penalty",
    "presence_penalty",
    "user",
    "extra",
    "reasoning_effort",
}
COMPATIBLE = {
    "top_k",
    "min_p",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "repetition_penalty",
    "regex",
    "ebnf",
    "guided_regex",
    "guided_grammar",
    "structured_outputs",
    "continue_final_message",
    "add_generation_prompt",
    "structural_tag",
}


class Refused(Exception):
    """A 400 with this message."""


class OpenAIServer(Loopback):
    """`script(prompt, body)` gives the text of an answer, or None for the toy model's own.

    `compatible`: takes the extra options of vLLM and SGLang too; without, an unknown option is a 400, as with
    OpenAI. `echo_scores`: text completions may have both echo and logprobs.
    """

    def __init__(self, compatible: bool = False, echo_scores: bool = True) -> None:
        super().__init__()
        self.compatible = compatible
        self.echo_scores = echo_scores
        self.names_tokens = True  # False: log-probabilities are a 400
        self.script: Callable[[str, dict[str, Any]], str | None] = lambda prompt, body: None
        self.usage = [0, 0]
        self.app.post("/v1/chat/completions")(self._chat)
        self.app.post("/v1/completions")(self._text)
        self.app.post("/openai/deployments/{name}/chat/completions")(self._chat)

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def reset(self) -> None:
        super().reset()
        self.script = lambda prompt, body: None
        self.usage = [0, 0]
        self.names_tokens = True

    async def _chat(self, request: Request) -> Any:
        return await self._answer(request, ChatReply, self._chat_prompts)

    async def _text(self, request: Request) -> Any:
        return await self._answer(request, TextReply, self._text_prompts)

    async def _answer(self, request: Request, reply: type[Reply], prompts: Any) -> Any:
        body = await request.json()
        self.record(body, request.headers)
        try:
            self._check(body)
            made = reply(body, [(prompt, self._write(prompt, body, i)) for i, prompt in prompts(body)])
        except Refused as error:
            return JSONResponse(self.error_body(400, str(error)), 400)
        usage = made.usage()
        self.usage[0] += usage["prompt_tokens"]
        self.usage[1] += usage["completion_tokens"]
        if body.get("stream"):
            return StreamingResponse(events(list(made.stream())), media_type="text/event-stream")
        return JSONResponse(made.whole())

    def _check(self, body: dict[str, Any]) -> None:
        for name in body.keys() - KNOWN - (COMPATIBLE if self.compatible else set()):
            raise Refused(f"Unrecognized request argument supplied: {name}")
        if body.get("logprobs") and not self.names_tokens:
            raise Refused("logprobs are not supported")
        stop = body.get("stop") or []
        if len([stop] if isinstance(stop, str) else stop) > 4:
            raise Refused("Invalid 'stop': array too long. Expected at most 4")
        if str(body["model"]).startswith(("o1", "o3", "gpt-5")):
            if "max_tokens" in body:
                raise Refused("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
            if any(name in body for name in ("temperature", "top_p", "stop", "logprobs", "logit_bias")):
                raise Refused("Unsupported parameter with this model")
        if "messages" in body and body["messages"][-1]["role"] == "assistant" and not self.compatible:
            raise Refused("the last message must not be that of the assistant")
        if any(message["role"] == "tool" for message in body.get("messages", ())) and not self.compatible:
            raise Refused("messages with role 'tool' must be a response to a message with 'tool_calls'")

    def _chat_prompts(self, body: dict[str, Any]) -> Iterator[tuple[int, str]]:
        prompt = "".join(f"[{m['role']}]{_content(m['content'])}\n" for m in body["messages"])
        last = body["messages"][-1]
        if last["role"] == "assistant":
            assert body.get("continue_final_message") and body.get("add_generation_prompt") is False
            prompt = prompt[:-1]
        else:
            prompt += "[assistant]"
        yield from ((index, prompt) for index in range(body.get("n") or 1))

    def _text_prompts(self, body: dict[str, Any]) -> Iterator[tuple[int, str]]:
        prompts = body["prompt"]
        for prompt in [prompts] if isinstance(prompts, str) else prompts:
            yield from ((index, prompt) for index in range(body.get("n") or 1))

    def _write(self, prompt: str, body: dict[str, Any], index: int) -> Answer:
        if body.get("echo") and body.get("logprobs") is not None and not self.echo_scores:
            raise Refused("Setting 'echo' and 'logprobs' at the same time is not supported for this model.")
        limit = body.get("max_completion_tokens", body.get("max_tokens", 4096 if "messages" in body else 16))
        stop = body.get("stop") or []
        stops = [stop] if isinstance(stop, str) else stop
        seed = prompt if not index else f"{prompt}#{index}"
        script = self.script(seed, body)
        form = body.get("response_format") or {}
        if script is None and form.get("type") == "json_schema":
            script = json_script(form["json_schema"]["schema"], seed)
        return write(seed, limit, stops, body.get("logit_bias"), script)


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(
        part["text"] if part["type"] == "text" else f"<{part['type']}:{len(part['image_url']['url'])}>"
        for part in content
    )


class Reply:
    """The answers to one request, whole or as a stream."""

    object = ""

    def __init__(self, body: dict[str, Any], answers: list[tuple[str, Answer]]) -> None:
        self.body = body
        self.answers = answers

    def usage(self) -> dict[str, int]:
        prompt = sum(len(TOKENIZER.encode(p)) for p in dict.fromkeys(p for p, _ in self.answers))
        completion = sum(answer.completion_tokens for _, answer in self.answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def whole(self) -> dict[str, Any]:
        choices = [self.choice(i, prompt, answer) for i, (prompt, answer) in enumerate(self.answers)]
        return {**self._head(""), "choices": choices, "usage": self.usage()}

    def stream(self) -> Iterator[bytes]:
        for index, (prompt, answer) in enumerate(self.answers):
            before = prompt
            for token in answer.tokens:
                yield self._event([self.delta(index, before, token)])
                before += token
            yield self._event([self.last(index, answer)])
        if (self.body.get("stream_options") or {}).get("include_usage"):
            yield self._event([], usage=self.usage())
        yield b"data: [DONE]\n\n"

    def choice(self, index: int, prompt: str, answer: Answer) -> dict[str, Any]:
        raise NotImplementedError

    def delta(self, index: int, before: str, token: str) -> dict[str, Any]:
        raise NotImplementedError

    def last(self, index: int, answer: Answer) -> dict[str, Any]:
        raise NotImplementedError

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": "toy-1", "object": self.object + kind, "created": 1, "model": self.body["model"]}

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + json.dumps({**self._head(".chunk"), "choices": choices, **more}).encode() + b"\n\n"


class ChatReply(Reply):
    object = "chat.completion"

    def choice(self, index: int, prompt: str, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        rows, before = [], prompt
        for token in answer.tokens:
            rows.append(self._row(before, token))
            before += token
        logprobs = {"content": rows} if self.body.get("logprobs") else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": answer.finish}

    def delta(self, index: int, before: str, token: str) -> dict[str, Any]:
        logprobs = {"content": [self._row(before, token)]} if self.body.get("logprobs") else None
        return {"index": index, "delta": {"content": token}, "logprobs": logprobs, "finish_reason": None}

    def last(self, index: int, answer: Answer) -> dict[str, Any]:
        return {"index": index, "delta": {}, "finish_reason": answer.finish}

    def _row(self, before: str, token: str) -> dict[str, Any]:
        best = [natural_token(before), "x", "y", "z"][: self.body.get("top_logprobs") or 0]
        return {**_entry(before, token), "top_logprobs": [_entry(before, other) for other in best]}


def _entry(before: str, token: str) -> dict[str, Any]:
    return {"token": token, "logprob": logprob(before, token), "bytes": list(token.encode())}


class TextReply(Reply):
    object = "text_completion"

    def choice(self, index: int, prompt: str, answer: Answer) -> dict[str, Any]:
        echo = self.body.get("echo")
        text = prompt + answer.text if echo else answer.text
        rows: list[tuple[str, float | None]] = []
        before = prompt
        for token in answer.tokens:
            rows.append((token, logprob(before, token)))
            before += token
        if echo:
            rows = [*score_tokens(prompt), *rows]
        start = 0 if echo else len(prompt)
        logprobs = None if self.body.get("logprobs") is None else self._logprobs(rows, prompt, start)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": answer.finish}

    def _logprobs(self, rows: list[tuple[str, float | None]], prompt: str, start: int) -> dict[str, Any]:
        offsets, tops, before = [], [], prompt[:start]
        for token, _ in rows:
            offsets.append(len(before))
            names = [natural_token(before), "x", "y"][: self.body["logprobs"]]
            tops.append({name: logprob(before, name) for name in names})
            before += token
        return {
            "tokens": [token for token, _ in rows],
            "token_logprobs": [value for _, value in rows],
            "text_offset": offsets,
            "top_logprobs": tops,
        }

    def delta(self, index: int, before: str, token: str) -> dict[str, Any]:
        logprobs = None
        if self.body.get("logprobs") is not None:
            logprobs = self._logprobs([(token, logprob(before, token))], before, len(before))
        return {"index": index, "text": token, "logprobs": logprobs, "finish_reason": None}

    def last(self, index: int, answer: Answer) -> dict[str, Any]:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": answer.finish}

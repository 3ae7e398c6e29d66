"""A server that speaks the native protocol (`/generate`) over the toy model, as strict as the real one."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

from api_loopback import Loopback
from api_toy import TOKENIZER, Answer, logprob, natural_token, write
from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

KNOWN = {
    "text",
    "input_ids",
    "image_data",
    "sampling_params",
    "stream",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
}
SAMPLING = {
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "max_new_tokens",
    "min_new_tokens",
    "n",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "ignore_eos",
    "regex",
    "json_schema",
    "ebnf",
    "structural_tag",
    "logit_bias",
    "sampling_seed",
    "no_stop_trim",
}
PIECES = re.compile(r"<=>|[^\W_]+|.|\n", re.DOTALL)  # "<=>" melts three tokens into one

Row = list[Any]  # [log-probability or None, token id, text or None]


def pieces_of(text: str) -> list[str]:
    """The tokens of a text; `tests` use it as the oracle of `select` too."""
    return PIECES.findall(text)


def rows_of(text: str) -> list[Row]:
    """Each token of a text with its log-probability behind those before it; the first has none."""
    rows: list[Row] = []
    before = ""
    for piece in pieces_of(text):
        rows.append([logprob(before, piece) if before else None, TOKENIZER.id(piece), piece])
        before += piece
    return rows


class NativeServer(Loopback):
    """`script(prompt, params)` gives the text of an answer, or None for the toy model's own.

    `incremental`: events hold only new text, and /server_info says so. `new_rows`: the log-probabilities of an
    event are the new ones only. `pause`: seconds before each event of a stream. `left` counts the streams
    that the client left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reset()
        self.app.get("/get_model_info")(self._model_info)
        self.app.get("/server_info")(self._server_info)
        self.app.get("/health")(self._text_reply)
        self.app.post("/flush_cache")(self._text_reply)
        self.app.post("/start_profile")(self._text_reply)
        self.app.post("/stop_profile")(self._text_reply)
        self.app.post("/generate")(self._generate)

    def reset(self) -> None:
        super().reset()
        self.script: Callable[[str, dict[str, Any]], str | None] = lambda prompt, params: None
        self.incremental = self.new_rows = False
        self.pause, self.left = 0.0, 0
        self.paths: list[str] = []
        self.reply: Callable[[Any], Any] = lambda answer: answer

    async def _model_info(self) -> Any:
        return self.reply({"model_path": "toy/toy-instruct", "tokenizer_path": "toy", "is_generation": True})

    async def _server_info(self) -> Any:
        return {"tokenizer_path": "toy", "version": "9", "stream_output": self.incremental}

    async def _text_reply(self, request: Request) -> Any:
        self.paths.append(request.url.path)
        return PlainTextResponse("done\n")

    async def _generate(self, request: Request) -> Any:
        body = await request.json()
        self.record(body, request.headers)
        if problem := problem_of(body):
            return JSONResponse(self.error_body(400, problem), 400)
        if body.get("stream"):
            return StreamingResponse(self._events(body), media_type="text/event-stream")
        texts = texts_of(body)
        answers = [self._answer(text, body) for text in texts]
        single = isinstance(body.get("text"), str)
        return PlainTextResponse(self._dump(answers[0] if single else answers), media_type="application/json")

    def _dump(self, answer: Any) -> str:
        answer = self.reply(answer)
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)

    def _write(self, prompt: str, params: dict[str, Any], stops: list[str] | None = None) -> Answer:
        stops = params.get("stop", []) if stops is None else stops
        limit = params["max_new_tokens"]  # null: to the end of the context
        return write(prompt, 4096 if limit is None else limit, stops, script=self.script(prompt, params))

    def _answer(self, prompt: str, body: dict[str, Any]) -> dict[str, Any]:
        made = self._write(prompt, body["sampling_params"])
        meta = self._meta(prompt, body, made, self._raw_tokens(prompt, body, made))
        return {"text": made.text, "output_ids": [TOKENIZER.id(t) for t in made.tokens], "meta_info": meta}

    def _raw_tokens(self, prompt: str, body: dict[str, Any], made: Answer) -> list[str]:
        """The tokens of an answer before its stop string was cut off."""
        limit = {**body["sampling_params"], "max_new_tokens": made.completion_tokens}
        return self._write(prompt, limit, stops=[]).tokens

    def _meta(self, prompt: str, body: dict[str, Any], made: Answer, raw: list[str]) -> dict[str, Any]:
        matched = {"type": "stop", "matched": made.stop_sequence}
        length = {"type": "length", "length": made.completion_tokens}
        meta: dict[str, Any] = {
            "id": f"toy-{len(self.requests)}",
            "finish_reason": length if made.finish == "length" else matched,
            "prompt_tokens": len(pieces_of(prompt)),
            "completion_tokens": made.completion_tokens,
            "cached_tokens": 0,
        }
        return {**meta, **self._logprobs(prompt, body, raw)} if body.get("return_logprob") else meta

    def _logprobs(self, prompt: str, body: dict[str, Any], raw: list[str]) -> dict[str, Any]:
        start = body.get("logprob_start_len", -1)
        inputs = [] if start < 0 else rows_of(prompt)[start:]
        if inputs:
            inputs[0] = [None, *inputs[0][1:]]  # the first one that is asked for is never scored
        following = [] if body["sampling_params"]["max_new_tokens"] else [natural_token(prompt)]
        outputs: list[Row] = []
        for index, token in enumerate(raw or following):
            outputs.append([logprob(prompt + "".join(raw[:index]), token), TOKENIZER.id(token), token])
        return {
            "input_token_logprobs": inputs,
            "output_token_logprobs": outputs,
            "output_token_logprobs_length": len(outputs),
        }

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        finished = False
        try:
            for event in self._stream(body["text"], body):
                yield b"data: " + self._dump(event).encode() + b"\n\n"
                await asyncio.sleep(self.pause)
            yield b"data: [DONE]\n\n"
            finished = True
        finally:
            self.left += not finished

    def _stream(self, prompt: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream: stops are cut off in the last one only, as the real server does it."""
        params = body["sampling_params"]
        final = self._answer(prompt, body)
        count = final["meta_info"]["completion_tokens"]
        raw = self._raw_tokens(prompt, body, self._write(prompt, params))
        events = [self._event(prompt, body, raw[:done]) for done in range(1, count)]
        shown = "".join(raw[: count - 1])
        if self.incremental:
            final = {**final, "text": final["text"][len(shown) :]}
        if self.new_rows and body.get("return_logprob"):
            meta = final["meta_info"]
            final = {
                **final,
                "meta_info": {**meta, "output_token_logprobs": meta["output_token_logprobs"][-1:]},
            }
        return [*events, final]

    def _event(self, prompt: str, body: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
        meta = self._meta(prompt, body, Answer("".join(tokens), tokens), tokens)
        if self.new_rows and body.get("return_logprob"):
            meta["output_token_logprobs"] = meta["output_token_logprobs"][-1:]
        text = tokens[-1] if self.incremental else "".join(tokens)
        return {"text": text, "meta_info": {**meta, "finish_reason": None}}


def texts_of(body: dict[str, Any]) -> list[str]:
    if "input_ids" in body:
        return [TOKENIZER.decode(ids) for ids in body["input_ids"]]
    return [body["text"]] if isinstance(body["text"], str) else body["text"]


def problem_of(body: dict[str, Any]) -> str | None:
    """What a strict server refuses."""
    params = body.get("sampling_params", {})
    unknown = (body.keys() - KNOWN) | (params.keys() - SAMPLING)
    if unknown:
        return f"unknown options {sorted(unknown)}"
    if not all(texts_of(body)):
        return "the prompt is empty"
    if params.get("n", 1) != 1:
        return "n must be 1"
    constraints = [name for name in ("regex", "json_schema", "ebnf") if params.get(name)]
    return f"only one of {constraints} can be set" if len(constraints) > 1 else None

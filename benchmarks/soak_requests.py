"""The requests of the soak: what each asks, what may come of it, and how its answer is looked at."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable
from typing import Any

import jsonschema
from server_client import DONE, Answer, Broken, Client

ANSWERED, LEFT = "answered", "left"
WORDS = [
    "a",
    "city",
    "hotel",
    "table",
    "for",
    "two",
    "nights",
    "in",
    "Paris",
    "with",
    "a",
    "train",
    "from",
    "Rome",
    "and",
    "three",
    "guests",
    "who",
    "like",
    "red",
    "wine",
]
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "nights": {"type": "integer", "minimum": 1, "maximum": 30},
        },
        "required": ["city", "nights"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 4},
    {
        "type": "object",
        "properties": {
            "kind": {"const": "train"},
            "seats": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        },
        "required": ["kind"],
    },
    {"anyOf": [{"type": "boolean"}, {"type": "null"}, {"type": "number", "minimum": 0, "maximum": 9}]},
]
REGEXES = ["[a-f]{3,9}", "(yes|no)[.!]?", r"\d{4}-\d{2}-\d{2}", "[A-Z][a-z]+( [A-Z][a-z]+)?"]
TOOL = {"name": "book_hotel", "description": "Book a hotel.", "parameters": SCHEMAS[0]}
CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/generate"
BAD: list[tuple[str, Any, int]] = [
    (CHAT, b'{"messages": [', 400),
    (TEXT, b"\xff\xfe\x00", 400),
    (NATIVE, b"[]", 400),
    (TEXT, {"prompt": "a", "temprature": 1}, 400),
    (TEXT, {"prompt": "a", "temperature": "hot"}, 400),
    (TEXT, {"prompt": "a", "top_p": 1e-300}, 400),
    (TEXT, {"prompt": "a", "n": 10**9}, 400),
    (TEXT, {"prompt": [10**9]}, 400),
    (TEXT, {"prompt": "a", "regex": "("}, 400),
    (TEXT, {"prompt": "a", "json_schema": {"type": "nothing"}}, 400),
    (TEXT, {"prompt": "a", "ebnf": "root ::= nowhere"}, 400),
    (CHAT, {"messages": []}, 400),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "model": "other"}, 404),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema"}}, 400),
    (NATIVE, {"text": "a", "sampling_params": {"max_new_tokens": -1}}, 400),
    (NATIVE, {"text": "a", "input_ids": [1]}, 400),
    (NATIVE, {"text": "word " * 20_000}, 400),
    ("/v1/nothing", {"prompt": "a"}, 404),
    ("/v1/models", {}, 405),
]


class Wrong(Exception):
    """An answer that should not be."""


class Requests:
    """Makes requests of all kinds on `client`. `faulty`: the engine may be killed meanwhile, and answers 503 then."""

    def __init__(self, client: Client, seed: int, most_body: int, faulty: bool) -> None:
        self._client, self._random, self._most_body, self._faulty = client, random.Random(seed), most_body, faulty
        self._named = 0
        self.kinds: dict[str, tuple[int, Callable[[], Awaitable[str]]]] = {
            "chat": (10, self._chat),
            "text": (8, self._text),
            "native": (8, self._native),
            "schema": (8, self._schema),
            "regex": (4, self._regex),
            "tool": (4, self._tool),
            "long prompt": (3, self._long),
            "scores": (2, self._scores),
            "embedding": (2, self._embedding),
            "deadline": (2, self._deadline),
            "aborted by name": (2, self._abort),
            "leaves a stream": (6, self._leave_stream),
            "leaves at once": (4, self._leave_at_once),
            "sends slowly": (2, self._send_slowly),
            "reads slowly": (2, self._read_slowly),
            "malformed": (12, self._bad),
            "huge body": (1, self._huge),
            "wrong key": (2, self._wrong_key),
            "about": (3, self._about),
        }

    def pick(self) -> str:
        names = list(self.kinds)
        return self._random.choices(names, [self.kinds[name][0] for name in names])[0]

    async def make(self, kind: str) -> str:
        """What came of one request of this kind. Raises Wrong, Broken."""
        return await self.kinds[kind][1]()

    # those that are to be answered

    async def _chat(self) -> str:
        asked = [{"role": "system", "content": "You book hotels."}] * self._random.randint(0, 1)
        body = {"messages": [*asked, {"role": "user", "content": self._words(1, 60)}], **self._sampling("max_tokens")}
        return await self._choices(CHAT, body)

    async def _text(self) -> str:
        prompts = [self._words(1, 40) for _ in range(self._random.choice([1, 1, 1, 3]))]
        body = {"prompt": prompts, "logprobs": self._random.choice([None, 2]), **self._sampling("max_tokens")}
        return await self._choices(TEXT, body, len(prompts))

    async def _native(self) -> str:
        body: Any = {
            "text": [self._words(1, 40)] * self._random.choice([1, 2]),
            "return_logprob": self._random.random() < 0.3,
        }
        body["sampling_params"] = self._sampling("max_new_tokens")
        stream = body["stream"] = body["sampling_params"].pop("stream")
        async with self._client.asked(NATIVE, body) as answer:
            if (refused := await self._refused(answer)) is not None:
                return refused
            if stream:
                return await self._stream(answer, lambda event: event["meta_info"]["finish_reason"])
            found = await answer.json()
        self._check(len(found) == len(body["text"]) * body["sampling_params"]["n"], found)
        self._check(all(each["meta_info"]["completion_tokens"] == len(each["output_ids"]) for each in found), found)
        return ANSWERED

    async def _schema(self) -> str:
        schema = self._random.choice(SCHEMAS)
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        body = {
            "messages": [{"role": "user", "content": self._words(3, 30)}],
            "response_format": form,
            "max_tokens": 90,
        }
        return await self._constrained(CHAT, body, lambda text: jsonschema.validate(json.loads(text), schema))

    async def _regex(self) -> str:
        pattern = self._random.choice(REGEXES)
        body = {"prompt": self._words(1, 20), "regex": pattern, "max_tokens": 40}
        return await self._constrained(TEXT, body, lambda text: self._check(re.fullmatch(pattern, text), text))

    async def _tool(self) -> str:
        body = {
            "messages": [{"role": "user", "content": self._words(3, 20)}],
            "tools": [{"type": "function", "function": TOOL}],
        }
        async with self._client.asked(CHAT, {**body, "tool_choice": "required", "max_tokens": 120}) as answer:
            if (refused := await self._refused(answer)) is not None:
                return refused
            [choice] = (await answer.json())["choices"]
        if choice["finish_reason"] != "length":
            [call, *_] = choice["message"]["tool_calls"]
            jsonschema.validate(json.loads(call["function"]["arguments"]), TOOL["parameters"])
        return ANSWERED

    async def _long(self) -> str:
        return await self._choices(TEXT, {"prompt": self._words(300, 1200), "max_tokens": 8, "n": 2})

    async def _scores(self) -> str:
        return await self._choices(TEXT, {"prompt": self._words(5, 60), "max_tokens": 0, "logprobs": 1, "echo": True})

    async def _embedding(self) -> str:
        inputs = [self._words(1, 50) for _ in range(self._random.randint(1, 6))]
        async with self._client.asked("/v1/embeddings", {"input": inputs}) as answer:
            if (refused := await self._refused(answer)) is not None:
                return refused
            self._check(len((await answer.json())["data"]) == len(inputs), inputs)
        return ANSWERED

    async def _deadline(self) -> str:
        body = {
            "prompt": self._words(1, 20),
            "max_tokens": 400,
            "ignore_eos": True,
            "timeout": self._random.choice([0.02, 0.2]),
        }
        return await self._choices(TEXT, body, late=True)

    async def _abort(self) -> str:
        self._named += 1
        name = f"soak-{id(self)}-{self._named}"
        body = {"text": self._words(1, 20), "rid": name, "stream": True, "sampling_params": self._endless()}
        async with self._client.asked(NATIVE, body) as answer:
            if (refused := await self._refused(answer)) is not None:
                return refused
            async with self._client.asked("/abort_request", {"rid": name}) as aborted:
                self._check(aborted.status == 200, aborted.status)
            return await self._stream(answer, lambda event: event["meta_info"]["finish_reason"], "request_aborted")

    # those who go away, and those who take their time

    async def _leave_stream(self) -> str:
        body = {
            "messages": [{"role": "user", "content": self._words(1, 30)}],
            "stream": True,
            "ignore_eos": True,
            "n": 2,
        }
        async with self._client.asked(CHAT, body) as answer:
            if (refused := await self._refused(answer)) is not None:
                return refused
            left = self._random.randint(0, 12)
            async for _ in answer.events():
                left -= 1
                if left < 0:
                    return LEFT
        return ANSWERED

    async def _leave_at_once(self) -> str:
        body = {"text": self._words(1, 300), "sampling_params": {**self._endless(), "n": self._random.choice([1, 3])}}
        try:
            async with asyncio.timeout(self._random.uniform(0, 0.5)), self._client.asked(NATIVE, body) as answer:
                if (refused := await self._refused(answer)) is not None:
                    return refused
                await answer.body()
        except TimeoutError:
            return LEFT
        return ANSWERED

    async def _send_slowly(self) -> str:
        async with self._client.asked(TEXT, {"prompt": self._words(1, 40), "max_tokens": 4}, dawdle=0.5) as answer:
            return await self._refused(answer) or ANSWERED

    async def _read_slowly(self) -> str:
        body = {"prompt": self._words(1, 20), "max_tokens": 60, "stream": True, "ignore_eos": True, "logprobs": 5}
        async with self._client.asked(TEXT, body) as answer:
            if (refused := await self._refused(answer)) is not None:
                return refused
            return await self._stream(answer, lambda event: event["choices"][0]["finish_reason"], pause=0.03)

    # those that are to be refused

    async def _bad(self) -> str:
        path, body, status = self._random.choice(BAD)
        async with self._client.asked(path, body) as answer:
            return await self._refused(answer, status) or ANSWERED

    async def _huge(self) -> str:
        body = b'{"prompt": "' + b"a" * self._most_body + b'"}'
        async with self._client.asked(TEXT, body) as answer:
            return await self._refused(answer, 413) or ANSWERED

    async def _wrong_key(self) -> str:
        async with self._client.asked(TEXT, {"prompt": "a"}, key="unknown") as answer:
            return await self._refused(answer, 401) or ANSWERED

    async def _about(self) -> str:
        path = self._random.choice(["/health", "/metrics", "/server_info", "/v1/models", "/get_model_info"])
        async with self._client.asked(path) as answer:
            if answer.status == 503 and path.startswith("/health") and self._faulty:
                return "503"
            return await self._refused(answer) or ANSWERED

    # what is in an answer

    async def _choices(self, path: str, body: Any, prompts: int = 1, late: bool = False) -> str:
        async with self._client.asked(path, body) as answer:
            if (refused := await self._refused(answer, *([504] if late else []))) is not None:
                return refused
            if body.get("stream"):
                return await self._stream(
                    answer, lambda event: event["choices"] and event["choices"][0]["finish_reason"]
                )
            found = await answer.json()
        self._check(len(found["choices"]) == prompts * body.get("n", 1), found)
        self._check(found["usage"]["prompt_tokens"] > 0, found)
        return ANSWERED

    async def _constrained(self, path: str, body: Any, check: Callable[[str], Any]) -> str:
        async with self._client.asked(path, body) as answer:
            if (refused := await self._refused(answer)) is not None:
                return refused
            [choice] = (await answer.json())["choices"]
        if choice["finish_reason"] == "stop":
            check(choice["text"] if path == TEXT else choice["message"]["content"])
        return ANSWERED

    async def _refused(self, answer: Answer, *expected: int) -> str | None:
        """The status by which it was refused; None: not at all. Raises Wrong for
        a status that this request should not get.
        """
        if answer.status == 200 and not (expected and 504 not in expected):
            return None
        body = await answer.body()
        if answer.status in (*expected, 429) or (answer.status == 503 and self._faulty):
            self._check(b'"message"' in body, body[:300])
            self._check(answer.status != 429 or answer.headers.get("retry-after", "").isdecimal(), answer.headers)
            return str(answer.status)
        raise Wrong(f"status {answer.status}: {body[:300]!r}")

    async def _stream(self, answer: Answer, end_of: Callable[[Any], Any], *codes: str, pause: float = 0.0) -> str:
        """Reads a stream up to its end mark. An error in it must be one that faults, or this request, explain."""
        finished, error, last = False, None, ""
        async for last in answer.events():
            event = None if last == DONE else json.loads(last)
            if event and "error" in event:
                error = event["error"]
            elif event:
                finished = bool(end_of(event)) or finished
            await asyncio.sleep(pause)
        self._check(last == DONE, f"the stream ends with {last[:200]!r}")
        if error is not None:
            self._check(self._faulty or codes, error)
            return "in stream" if not codes else "aborted"
        self._check(finished, "no finish_reason in the stream")
        return ANSWERED

    def _check(self, well: Any, what: Any) -> None:
        if not well:
            raise Wrong(str(what)[:300])

    # what is asked

    def _words(self, least: int, most: int) -> str:
        return " ".join(self._random.choices(WORDS, k=self._random.randint(least, most)))

    def _sampling(self, limit: str) -> dict[str, Any]:
        chosen = self._random.choice
        return {
            limit: self._random.randint(1, 60),
            "temperature": chosen([0, 0.7, 1.0]),
            "top_p": chosen([1.0, 0.9]),
            "n": chosen([1, 1, 1, 2, 4]),
            "stop": chosen([None, ".", ["!", "\n"]]),
            "stream": chosen([True, False]),
        }

    def _endless(self) -> dict[str, Any]:
        return {"max_new_tokens": 700, "ignore_eos": True}


UNEXPECTED = (Wrong, Broken, OSError, jsonschema.ValidationError, ValueError, LookupError, TypeError)

"""Answers that clients may come back to, as JSON, within bounds of bytes and of age."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ...http.http_errors import RequestError
from ...request_context import CALLER
from ..openai_common.openai_response_fields import Json

MOST_AGE = 24 * 3600.0  # seconds since an answer, or one that follows it, was last used
LARGEST = 4  # one answer may have this part of the bytes
ENDED = ("completed", "incomplete")
RUNNING = "in_progress"

Key = tuple[str, str]  # tenant, id


@dataclass
class StoredResponse:
    """A response and its own input items, both as JSON. run: the id of the request that makes it."""

    answer: bytes
    input: bytes
    previous: str | None
    status: str
    run: str
    used: float = field(default_factory=lambda: time.monotonic())
    items: tuple[str, ...] = ()  # ids by which its items are found

    @property
    def size(self) -> int:
        return len(self.answer) + len(self.input)

    @property
    def conversation(self) -> list[Json]:
        """What it adds to a conversation: its input, then its output."""
        return [*json.loads(self.input), *json.loads(self.answer)["output"]]


class ResponseStore:
    """Keeps up to `most` bytes of JSON. Each method sees only what belongs to the `CALLER`. Thread-safe.

    Where there is no room, the tenant that holds most loses what it has not used for longest.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: dict[str, OrderedDict[str, StoredResponse]] = {}  # of each tenant, in the order of their last use
        self._items: dict[Key, str] = {}  # ids of items to those of responses
        self._held: Counter[str] = Counter()  # bytes of each tenant
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes of all."""
        return self._held.total()

    def put(self, answer: Json, input: bytes, ids: Iterable[str], run: str) -> None:
        """Keep a response and its own input: JSON, and the ids of its items. One that is too large is not kept."""
        self._keep(
            (CALLER.get().tenant, answer["id"]),
            answer,
            StoredResponse(b"", input, answer["previous_response_id"], RUNNING, run),
            ids,
        )

    def update(self, answer: Json) -> None:
        """What has become of a response, unless it is kept no more."""
        key = (CALLER.get().tenant, answer["id"])
        with self._lock:
            kept = self._kept.get(key[0], {}).get(key[1])
        if kept is not None:
            self._keep(key, answer, replace(kept, used=time.monotonic()), kept.items)

    def _keep(self, key: Key, answer: Json, kept: StoredResponse, ids: Iterable[str]) -> None:
        kept.answer, kept.status = as_json(answer), answer["status"]
        kept.items = (*dict.fromkeys([*ids, *(item["id"] for item in answer["output"])]),)
        with self._lock:
            self._drop(key)
            if kept.size > self.most // LARGEST:
                return
            self._kept.setdefault(key[0], OrderedDict())[key[1]] = kept
            self._held[key[0]] += kept.size
            self._items |= {(key[0], id): key[1] for id in kept.items}
            self._make_room()

    def get(self, id: str) -> StoredResponse:
        """Raises RequestError with 404 where there is none of the caller's."""
        tenant = CALLER.get().tenant
        with self._lock:
            self._forget_old()
            mine: OrderedDict[str, StoredResponse] = self._kept.get(tenant, OrderedDict())
            kept = mine.get(id)
            if kept is None:
                raise missing(id)
            kept.used = time.monotonic()
            mine.move_to_end(id)
        return kept

    def delete(self, id: str) -> StoredResponse:
        kept = self.get(id)
        with self._lock:
            self._drop((CALLER.get().tenant, id))
        return kept

    def chain(self, id: str) -> list[StoredResponse]:
        """The response and all that it follows, the first one first."""
        found = [self.get(id)]
        while (before := found[-1].previous) is not None:
            found.append(self.get(before))
        return found[::-1]

    def siblings(self, id: str) -> dict[str, Json]:
        """All items, by their ids, of the response that has an item of this id. Raises RequestError."""
        response = self._items.get((CALLER.get().tenant, id))
        if response is None:
            raise missing(id, "item")
        return {item["id"]: item for item in self.get(response).conversation}

    # inside, with the lock

    def _drop(self, key: Key) -> None:
        kept = self._kept.get(key[0], OrderedDict()).pop(key[1], None)
        if kept is None:
            return
        self._held[key[0]] -= kept.size
        for id in kept.items:
            if self._items.get((key[0], id)) == key[1]:
                del self._items[key[0], id]

    def _make_room(self) -> None:
        self._forget_old()
        while self._held.total() > self.most:
            tenant = max(self._held, key=lambda name: self._held[name])
            self._drop((tenant, next(iter(self._kept[tenant]))))
        self._held += Counter()  # those that hold nothing are forgotten

    def _forget_old(self) -> None:
        before = time.monotonic() - MOST_AGE
        for tenant, mine in self._kept.items():
            while mine and next(iter(mine.values())).used < before:
                self._drop((tenant, next(iter(mine))))


def missing(id: str, what: str = "response") -> RequestError:
    return RequestError(
        f"there is no {what} {id!r:.100} here; it was not stored, is too old, had to make room, or belongs to another "
        "API key: send its items as input",
        None,
        "not_found",
        404,
    )


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")

"""Pages of keys and values in main memory of several ranks: each moves those of the heads and layers that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ...cache import Ints
from ...cache.host_kv_pages import HostKVPages
from ...cache.host_kv_tier import PageCopier
from .worker_group import RankGroup


class RankPageCopies(PageCopier, Protocol):
    def fill_nan(self, places: Ints) -> None: ...


MOVES = {
    "save_pages": "save",
    "load_pages": "load",
    "fill_pages": "fill_nan",
    "release_pages": "release",
}  # what rank 0 tells, by the methods of `HostKVPages`


def calls_of(pages: HostKVPages) -> dict[str, Callable[..., Any]]:
    return {called: getattr(pages, name) for called, name in MOVES.items()}


class RanksPageCopier:
    """Of rank 0. The others are informed first: what fails here is kept by no rank, and what fails there ends all."""

    def __init__(self, own: RankPageCopies, team: RankGroup, page_size: int, places: int) -> None:
        self._own, self._team = own, team
        team.ask("allocate_host_pages", page_size, places)

    def save(self, pages: Ints, places: Ints) -> None:
        self._team.tell("save_pages", pages, places)
        self._own.save(pages, places)

    def load(self, places: Ints, pages: Ints) -> None:
        self._team.tell("load_pages", places, pages)
        self._own.load(places, pages)

    def fill_nan(self, places: Ints) -> None:
        self._team.tell("fill_pages", places)
        self._own.fill_nan(places)

    def release(self) -> None:
        self._team.tell("release_pages")
        self._own.release()

    def close(self) -> None:
        self._own.close()

"""What a store of files elsewhere can do, and which kinds there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit, urlunsplit

from ...errors import CheckpointError, ConfigError, brief

SCHEMES = {
    "http": "http_store",
    "https": "http_store",
    "redis": "redis_store",
    "rediss": "redis_store",
    "s3": "object_store",
    "gs": "object_store",
    "az": "object_store",
}
SECONDS, LONGEST = 30.0, 600.0  # for the next bytes of an answer, for one answer
TRIES = 3


class RemoteFile(NamedTuple):
    """tag: another one where the content is another; "": the store does not say."""

    size: int
    tag: str


class RemoteStore(Protocol):
    """A folder of files under a URL.

    Several threads may read at a time. All methods raise CheckpointError, within bounded time.
    """

    url: str  # as errors show it

    def find(self, wanted: Iterable[str]) -> dict[str, RemoteFile]:
        """Those of the wanted files that are there."""

    def read(self, name: str, file: RemoteFile, start: int, count: int) -> Any:
        """Exactly those bytes, as a buffer.

        Raises CheckpointError where the file is no longer the one that was found.
        """


def is_url(text: str) -> bool:
    return re.match(r"[a-zA-Z][\w+.-]*://", text) is not None


def open_store(url: str) -> RemoteStore:
    """Raises ConfigError for a URL of another kind, and where a package is missing."""
    scheme = urlsplit(url).scheme.lower()
    if scheme not in SCHEMES:
        raise ConfigError(
            f"{shown_url(url)}: a model's URL begins with {', '.join(f'{name}://' for name in (*SCHEMES, 'file'))}"
        )
    if urlsplit(url).query or urlsplit(url).fragment:
        raise ConfigError(
            f"{shown_url(url)}: a model's URL names a folder and ends with its path; leave out what follows '?' or '#'"
        )
    store: RemoteStore = import_module(f".{SCHEMES[scheme]}", __package__).connect(url.rstrip("/"))
    return store


def extra(package: str, url: str) -> Any:
    """An optional package. Raises ConfigError that says how to get it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ConfigError(f"{shown_url(url)} needs the package {package}: pip install 'sgl[remote]'") from error


def shown_url(url: str) -> str:
    """Without a password and what may be one."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def lost(store: RemoteStore, name: str, why: object) -> CheckpointError:
    reason = brief(" ".join(str(why).split()) or type(why).__name__)
    return CheckpointError(
        f"{store.url}/{name} could not be read: {reason}; check the address and that the store is up"
    )


def changed(store: RemoteStore, name: str, before: RemoteFile, now: object) -> CheckpointError:
    return CheckpointError(
        f"{store.url}/{name} is another file than when the model was opened (then {before.size:,} bytes, "
        f"{before.tag or 'no tag'}; now {now}); open the model again"
    )


def again(call: Callable[[], Any], passing: tuple[type[Exception], ...]) -> Any:
    """What a call gives, asked again after errors that may pass."""
    for left in reversed(range(TRIES)):
        try:
            return call()
        except passing:
            if not left:
                raise
    raise AssertionError("there is no try")

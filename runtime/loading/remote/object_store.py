"""Files in buckets: s3://, gs://, az://, through the package obstore, which takes keys and endpoints from the
environment as others do.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from .remote_store import LONGEST, SECONDS, TRIES, RemoteFile, changed, extra, lost, shown_url

AT_A_TIME = 8  # files that are looked for


class ObjectStore:
    def __init__(self, url: str) -> None:
        self.url, self._obstore = shown_url(url), extra("obstore", url)
        extra("obstore.store", url)
        try:  # allow_http: where the environment names an endpoint without TLS; those of the clouds have it
            self._store = self._obstore.store.from_url(
                url,
                client_options={
                    "timeout": timedelta(seconds=LONGEST),
                    "connect_timeout": timedelta(seconds=SECONDS),
                    "allow_http": True,
                },
                retry_config={"max_retries": TRIES - 1, "retry_timeout": timedelta(seconds=2 * SECONDS)},
            )
        except self._obstore.exceptions.BaseError as error:
            raise lost(self, "", error) from error

    def find(self, wanted: Iterable[str]) -> dict[str, RemoteFile]:
        names = list(wanted)
        with ThreadPoolExecutor(AT_A_TIME, "sgl-find") as pool:
            return {
                name: file for name, file in zip(names, pool.map(self._find, names), strict=True) if file is not None
            }

    def _find(self, name: str) -> RemoteFile | None:
        try:
            return _file(self._obstore.head(self._store, name))
        except FileNotFoundError:
            return None
        except self._obstore.exceptions.BaseError as error:
            raise lost(self, name, error) from error

    def read(self, name: str, file: RemoteFile, start: int, count: int) -> Any:
        if not count:
            return b""
        options = {"range": (start, start + count), **({"if_match": file.tag} if file.tag else {})}
        try:
            found = self._obstore.get(self._store, name, options=options)
            if _file(found.meta) != file:
                raise changed(self, name, file, found.meta["e_tag"])
            return found.bytes()
        except self._obstore.exceptions.PreconditionError:
            raise changed(self, name, file, "another tag") from None
        except FileNotFoundError as error:
            raise CheckpointError(f"{self.url}/{name} is no longer there; upload the model again") from error
        except self._obstore.exceptions.BaseError as error:
            raise lost(self, name, f"bytes {start:,} to {start + count:,}: {error}") from error

    def write(self, name: str, source: Path) -> None:
        try:
            self._obstore.put(self._store, name, source)
        except self._obstore.exceptions.BaseError as error:
            raise lost(self, name, error) from error


def _file(meta: Any) -> RemoteFile:
    return RemoteFile(meta["size"], meta["e_tag"] or "")


connect = ObjectStore

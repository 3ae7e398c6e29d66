"""Where a web server may send who reads a model: to public addresses of other hosts.
Any other address is one that the user names.
"""

from __future__ import annotations

import ipaddress
import socket

import httpx

from ...errors import CheckpointError
from .remote_store import shown_url

PORTS = {"http": 80, "https": 443}


def require_allowed(first: httpx.URL, to: httpx.URL) -> None:
    """first: of the address that the user gave.  to: asked now, by itself or by a redirect.
    Raises CheckpointError before anything is sent there.
    """
    if _origin(first) == _origin(to):
        return
    if to.scheme not in PORTS or (first.scheme, to.scheme) == ("https", "http"):
        raise _not_followed(first, to, f"{to.scheme}:// instead of {first.scheme}://")
    if to.host == first.host and _port(first) == PORTS[first.scheme] and _port(to) == PORTS[to.scheme]:  # http to https
        return
    if (private := _private(to)) is not None:
        raise _not_followed(first, to, f"which is not public ({private})")


def _not_followed(first: httpx.URL, to: httpx.URL, why: str) -> CheckpointError:
    return CheckpointError(
        f"{shown_url(str(first))} redirects to {shown_url(str(to))}, {why}: that is not followed; give this address "
        "yourself if the model is there"
    )


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, _port(url)


def _port(url: httpx.URL) -> int | None:
    return url.port or PORTS.get(url.scheme)


def _private(url: httpx.URL) -> str | None:
    """An address of the host that is not of the public network.

    None: there is none, or the name is known to a proxy alone.
    """
    try:
        found = socket.getaddrinfo(url.host, url.port or PORTS[url.scheme], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    addresses = [str(place[4][0]).partition("%")[0] for place in found]
    return next((address for address in addresses if not _is_public(address)), None)


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address)
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    return found.is_global and not found.is_multicast and (inner is None or inner.is_global)

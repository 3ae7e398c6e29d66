"""The socket of a server: bound before the model is loaded, and without what serves on it."""

from __future__ import annotations

import socket

from sgl.runtime.errors import ConfigError

from .server_settings import ServerSettings

SEND_BUFFER = 256 * 1024  # bytes the system holds for a client that does not read; Linux doubles it
UNREAD_SECONDS = 60  # after which a client that takes nothing of its answer has left


def bind(settings: ServerSettings) -> socket.socket:
    """A socket at the host and port of the settings that does not listen yet. Raises ConfigError."""
    host, port = settings.host, settings.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # asyncio sends at once on what is named TCP
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_SECONDS * 1000)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {host} port {port}: {error.strerror}; take another --port") from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

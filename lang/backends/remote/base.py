"""The common base of the backends that ask a server: one loop thread, retries, deadlines, ordered streams."""

from __future__ import annotations

import asyncio
import math
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...backend import Backend, Generated, GenRequest, OnChunk, SelectRequest
from ...chat import ChatTemplate, get_chat_template
from ...errors import BadValueError, RemoteError, RemoteTimeoutError, UnsupportedByBackendError, check_text
from ...sampling.choices import ChoicesDecision
from ...sampling.options import DEFAULTS, SamplingOptions
from ...sampling.token_prices import Prices
from .remote_event_loop import PerEventLoop
from .remote_prompt import RemotePrompt
from .remote_stream import RemoteStream
from .retry_policy import RetryPolicy

T = TypeVar("T")


class RemoteBackend(Backend):
    """A backend that calls a server for each generation.

    `timeout`: seconds for one call with its retries, from its start. `retries`: how often to repeat a call after a
    temporary failure (no connection, 408, 409, 425, 429, 5xx), after about `backoff` seconds, doubled each time.
    `max_concurrency`: the most calls at a time. `prices`: what a million tokens cost, for `Usage.cost`.
    `hf_chat_template`: a template or its name.

    Subclasses define `complete` and, if they can, `choose` and `warm`. They raise RemoteError for failures of the
    server or the network (`retryable` if another try may help) and UnsupportedByBackendError for requests that cannot
    be served. All three run on one loop thread, which they must not block.
    """

    takes_media: frozenset[str] = frozenset()  # "image", "video"

    def __init__(
        self,
        *,
        timeout: float = 600.0,
        retries: int = 3,
        backoff: float = 0.5,
        max_concurrency: int = 256,
        chat_template: ChatTemplate | str | None = None,
        prices: Prices | None = None,
    ) -> None:
        if timeout <= 0 or retries < 0 or backoff < 0 or max_concurrency < 1:
            raise BadValueError(
                f"timeout={timeout}, retries={retries}, backoff={backoff}, max_concurrency={max_concurrency}: "
                "give a timeout above 0, at least 0 retries and backoff, and a concurrency of 1 or more"
            )
        if prices is not None and not isinstance(prices, Prices):
            raise BadValueError(f"prices={prices!r}: give sgl.Prices(input=..., output=...), for a million tokens")
        self.prices = prices
        self.timeout = timeout
        self.policy = RetryPolicy(retries, backoff)
        self.max_concurrency = max_concurrency
        self._slots = PerEventLoop(lambda: asyncio.Semaphore(max_concurrency))
        if isinstance(chat_template, str):
            chat_template = get_chat_template(chat_template)
        if chat_template is not None:
            self.chat_template = chat_template

    def open(self) -> RemoteStream:
        return RemoteStream(self)

    def prepare(self, options: SamplingOptions) -> None:
        self.check(GenRequest(options.over(DEFAULTS)))

    # --- for subclasses to write -------------------------------------------------------------------------

    def check(self, request: GenRequest | SelectRequest) -> None:
        """Raise at once what is wrong with a request (an option that the server does not have)."""

    @abstractmethod
    async def complete(self, prompt: RemotePrompt, request: GenRequest, emit: OnChunk | None) -> Generated:
        """Generate one text after the prompt, whatever `request.options.n` says.

        With `emit` the text is streamed: it gets the new text of each chunk, and what it got must add up to
        the text of the result.
        """

    async def choose(self, prompt: RemotePrompt, request: SelectRequest) -> ChoicesDecision:
        """The best of the choices after the prompt."""
        raise UnsupportedByBackendError(f"{type(self).__name__} cannot select; use gen with a regex or another backend")

    async def warm(self, prompt: RemotePrompt) -> None:
        """Have the server compute and cache the prompt."""

    # --- for streams -------------------------------------------------------------------------------------

    async def perform(
        self,
        work: Callable[[], Awaitable[T]],
        deadline: float | None = None,
        may_retry: Callable[[], bool] = lambda: True,
    ) -> T:
        """Do `work` when a place is free, again if it fails and may be tried again.

        `deadline` (time.monotonic() seconds) bounds the waiting and all tries. Raises RemoteTimeoutError.
        """
        begun = time.monotonic()
        try:
            async with asyncio.timeout(_until(deadline)), self._slots.get():
                return await self._try(work, deadline, may_retry)
        except RemoteError:
            raise
        except UnicodeEncodeError as error:
            check_text(error.object, "what is asked of the server")
            raise
        except TimeoutError as error:
            raise _timed_out(self, time.monotonic() - begun) from error

    async def _try(self, work: Callable[[], Awaitable[T]], deadline: float | None, may_retry: Callable[[], bool]) -> T:
        end = min(time.monotonic() + self.timeout, math.inf if deadline is None else deadline)
        async with asyncio.timeout(self.timeout):
            return await self.policy.run(work, may_retry, lambda: end - time.monotonic())


def _until(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _timed_out(backend: RemoteBackend, seconds: float) -> RemoteTimeoutError:
    return RemoteTimeoutError(
        f"{backend.get_model_name()} had not answered in full after {seconds:.3g} s; give the gen or the "
        f"backend (timeout={backend.timeout:g}) more time"
    )

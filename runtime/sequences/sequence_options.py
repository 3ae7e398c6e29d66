"""On what terms a sequence is computed: how urgent it is, for whom, until when, and whose prefixes it may reuse."""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

from ..cache import Space
from ..common.argument_checks import WORD, plain, shown
from ..errors import ConfigError


class SequenceOptions(NamedTuple):
    """Given when a sequence is opened; its forks inherit them.

    priority   higher ones are computed first, and may take the place of lower ones
    tenant     for whom: tenants of equal priority share the engine fairly, whatever each of them asks for
    namespace  cached prefixes are matched within it alone
    adapter    the digest of the adapter that computes it, "" for the base; prefixes are matched within it alone
    deadline   `time.monotonic()` seconds; what is not done by then fails with DeadlineExceeded. None: no hurry
    """

    priority: int = 0
    tenant: str = ""
    namespace: str = ""
    deadline: float | None = None
    adapter: str = ""

    @property
    def space(self) -> Space:
        """Within what prefixes are matched."""
        return (self.namespace, self.adapter) if self.adapter else self.namespace

    @classmethod
    def with_deadline_now(
        cls, priority: int, tenant: str, namespace: str, timeout: float | None, adapter: str = ""
    ) -> SequenceOptions:
        """With a deadline `timeout` seconds from now. Raises ConfigError naming what cannot be used."""
        priority, tenant, namespace = plain(priority), plain(tenant), plain(namespace)
        if isinstance(priority, bool) or not isinstance(priority, int) or not -WORD <= priority < WORD:
            raise ConfigError(
                f"priority={shown(priority)}: must be a whole number, such as 0 (usual) or 1 (more urgent)"
            )
        for name, value in (("tenant", tenant), ("namespace", namespace)):
            if not isinstance(value, str):
                raise ConfigError(f"{name}={shown(value)}: must be a text; '' is the common one")
        return cls(priority, tenant, namespace, _deadline(plain(timeout)), adapter)


USUAL = SequenceOptions()


def _deadline(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= sys.float_info.max:
        raise ConfigError(f"timeout={shown(timeout)}: must be a positive number of seconds, or None for no deadline")
    return time.monotonic() + float(timeout)

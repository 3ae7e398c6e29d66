"""Names for states and generations, unique across processes and cheap to make."""

from __future__ import annotations

import itertools
import uuid

_PROCESS = uuid.uuid4().hex[:12]
_numbers = itertools.count()


def fresh_id() -> str:
    return f"{_PROCESS}-{next(_numbers)}"

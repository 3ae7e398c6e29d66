"""Runs that are written down: recorded, replayed without a model, resumed after a crash, edited and re-run."""

from .journal import Journal
from .journal_backend import JournalBackend, JournalCounts, journalled, record, replay, resume
from .journal_node import JournalNode
from .memoized_values import once

__all__ = [
    "Journal",
    "JournalBackend",
    "JournalCounts",
    "JournalNode",
    "journalled",
    "once",
    "record",
    "replay",
    "resume",
]

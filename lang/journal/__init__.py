"""Runs that are written down: recorded, replayed without a model, resumed after a crash, edited and re-run."""

from .journal_backend import JournalCounts, JournalBackend, journalled, record, replay, resume
from .journal import Journal
from .journal_node import JournalNode
from .once_values import once

__all__ = ["JournalCounts", "Journal", "JournalBackend", "JournalNode", "journalled", "once", "record", "replay", "resume"]

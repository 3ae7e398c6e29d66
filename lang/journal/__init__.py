"""Runs that are written down: recorded, replayed without a model, resumed after a crash, edited and re-run."""

from .backend import Counts, JournalBackend, journalled, record, replay, resume
from .journal import Journal
from .node import Node
from .remembered import once

__all__ = ["Counts", "Journal", "JournalBackend", "Node", "journalled", "once", "record", "replay", "resume"]

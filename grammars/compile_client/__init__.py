"""Grammars compiled by a separate process, so that this one's threads need not share Python with that work."""

"""Grammars that a process of its own compiles, so that this one's threads need not share Python with that work."""

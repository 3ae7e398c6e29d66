"""Concerns of a whole process: checks of arguments, the parent's death, garbage collection, thread priority."""

"""Runners and worker of an engine that spans several ranks."""

"""Incremental readers of tool calls: JSON, Python literals, marked parameters."""

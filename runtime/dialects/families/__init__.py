"""The dialects of model families: how each writes and reads tool calls."""

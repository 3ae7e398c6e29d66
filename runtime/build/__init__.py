"""Builds an engine: its options, memory plan, weights, ranks, caches and runner."""

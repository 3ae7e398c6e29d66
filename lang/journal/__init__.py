"""Runs written down: replayed, resumed, edited and tested without a model."""

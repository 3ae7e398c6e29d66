"""Answers written down beforehand, for tests without a model."""

"""Backends that were written for the old interface."""

"""Finds mistakes in programs without running them."""

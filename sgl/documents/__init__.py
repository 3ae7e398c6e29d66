"""Documents: their text with pages and places, and its pieces."""

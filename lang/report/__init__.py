"""A run as a picture: one HTML page."""

"""Other providers' APIs, and what all providers' APIs have in common."""

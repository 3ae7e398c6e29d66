"""JSON Schema as a grammar."""

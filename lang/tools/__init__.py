"""Tools that a model may call: described, constrained and parsed in its format."""

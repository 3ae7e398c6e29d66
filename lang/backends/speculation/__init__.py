"""Fewer calls to an API: text that was made ahead serves the gens that follow."""

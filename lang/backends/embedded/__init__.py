"""Programs on an Engine in the same process."""

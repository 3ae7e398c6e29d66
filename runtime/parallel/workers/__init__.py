"""The processes of ranks above 0, and what rank 0 sends them."""

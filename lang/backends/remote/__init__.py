"""What all backends that ask a server have in common."""

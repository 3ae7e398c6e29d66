"""The HTTP protocols that the server speaks, one folder each."""

"""What every floor needs, and what knows nothing of sgl."""

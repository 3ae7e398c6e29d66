"""Which device or rank holds which experts."""

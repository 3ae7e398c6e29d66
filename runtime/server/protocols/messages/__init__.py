"""Anthropic's Messages: requests become chat requests, chunks become blocks of content and their events."""

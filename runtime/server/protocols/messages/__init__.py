"""Anthropic's Messages: requests become chat requests, what is told becomes blocks of content and their events."""

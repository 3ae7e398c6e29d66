"""OpenAI's Responses: requests become chat requests, what is told becomes items and their events."""

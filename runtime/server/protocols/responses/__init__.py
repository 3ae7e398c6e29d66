"""OpenAI's Responses: requests become chat requests, chunks become items and their events."""

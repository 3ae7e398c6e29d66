"""What the routes of OpenAI's protocol have in common: request fields, response fields, logprobs."""

"""OpenAI's chat completions: a conversation becomes a prompt and a plan, what is generated becomes choices; others
answer by it.
"""

"""Drafts of tokens, which the ordinary sampler keeps or drops: the text is the text without them."""

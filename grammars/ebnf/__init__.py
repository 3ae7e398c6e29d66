"""EBNF grammars: Lark, GBNF and the W3C-like dialect."""

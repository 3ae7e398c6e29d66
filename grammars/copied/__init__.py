"""Verbatim pieces of a text: where they may begin and end, and the automaton of all of them."""

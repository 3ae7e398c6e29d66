"""How good a program is: scores, comparisons, and the choice of examples and wordings by score."""

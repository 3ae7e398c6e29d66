"""The process that compiles grammars for another one; `apart` is its other end."""

"""The language: programs, their nodes, and the interpreter that runs them on a backend."""

"""Drawings of a traced program: SVG and Graphviz."""

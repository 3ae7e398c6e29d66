"""The prefix cache as its users see it: snapshot, tree, outline, SVG."""

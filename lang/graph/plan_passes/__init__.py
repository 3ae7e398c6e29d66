"""The passes over the plan of a traced program."""

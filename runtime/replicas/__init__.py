"""One engine in front of several: a process each, which a sequence is given to with everything that it forks."""

"""Orders of the queue and searches through it: one idea and one citation a file."""

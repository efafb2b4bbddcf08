"""The papers' experiments, run again: each module returns a report of checks and tables beside what the paper printed.

One folder a paper. A paper uses `engine`, `runs`, `gangs` and `calls`, and no other paper.
"""

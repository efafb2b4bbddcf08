"""Scheduling, pure: cluster state and causes in, a plan of decisions out; the same for the live leader and the simulator.

Here stand the nouns and the pass (`job`, `records`, `plan`, `policy`, `parameters`, `engine`), policies by name (`catalogue`), from tables
(`pipeline`) and of others (`vetting`). Lowest first: tree, capacity, state, what a policy reads and writes on (`view`, `draft`), policies.
What policies of users import (README.md) keeps its place.
"""

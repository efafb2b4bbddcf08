"""Scheduling, pure: cluster state and causes in, a plan of decisions out; the same for the live leader and the simulator.

Here stand the nouns and the pass (`job`, `records`, `plan`, `order`, `policy`, `parameters`, `engine`). Rooms, lowest first: tree,
capacity, state, draft, policies, pipeline. What policies of users import (README.md) keeps its place.
"""

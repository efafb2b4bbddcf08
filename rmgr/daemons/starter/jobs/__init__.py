"""Placed jobs on their nodes: the barrier before the start, helpers, lost ranks, verdicts, terminals.

It obeys placements of the leader and never chooses nodes.
"""

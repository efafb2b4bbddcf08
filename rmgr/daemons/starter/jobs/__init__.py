"""Placed jobs on their nodes: barrier before the start, helpers, lost ranks, verdict, terminal.

It obeys placements of the leader and never chooses nodes.
"""

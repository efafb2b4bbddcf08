"""Holds what one term of a leader shares: its fenced commits, watched caches of ZooKeeper, metrics.

It decides nothing, and imports no other room of the leader.
"""

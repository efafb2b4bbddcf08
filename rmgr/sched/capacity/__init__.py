"""Computes what is free, now and later: pools of nodes, horizons of promises, profiles, held cores, nodes of gangs.

It computes on jobs and nodes, and knows no partition, policy or draft.
"""

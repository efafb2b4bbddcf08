"""Computes what is free, now and later: pools of nodes, horizons of promises, profiles, held cores, nodes of gangs.

Arithmetic over jobs and nodes. It knows no partition, no policy and no draft.
"""

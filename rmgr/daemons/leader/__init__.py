"""The WatchDog: it joins a cluster, takes part in the election, and as the leader watches nodes and submissions and places jobs.

Rooms, lowest first: core, records, submissions, nodes, plugins, placement, term. A room imports only rooms before it.
"""

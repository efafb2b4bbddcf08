"""The WatchDog: it joins a cluster, takes part in the election, and as the leader watches nodes and submissions and places jobs.

Lowest first: metrics, tree, facts; submissions; nodes; placement; use, calls; leader; answering. Each imports only what is before it.
"""

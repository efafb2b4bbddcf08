"""The WatchDog joins a cluster and stands for election; the elected leader watches nodes and submissions and places jobs.

Modules from low to high: term, facts; submissions; nodes; placement; use; leader; answering. Each imports only lower ones; a part
may hold its owner.
"""

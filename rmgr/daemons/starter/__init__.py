"""The Starter: claims blocks of tasks for the nodes of one machine, runs them and commits how they ended.

Rooms, lowest first: core, staging, execution, checkpoint, jobs, pull, node. A room imports only rooms before it.
"""

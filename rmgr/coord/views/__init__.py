"""Makes views for people and programs from one snapshot of the cluster: jobs, tasks, nodes, queues, health.

Functions from a snapshot to the shapes of `rmgr.model.views`. They read no store and print nothing.
"""

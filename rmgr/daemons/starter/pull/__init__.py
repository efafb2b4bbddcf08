"""Claiming: what a node takes from the queues, what clients hand to it directly, and hints that come before.

It commits claims through `core.tree` and gives claimed blocks to the node; it runs nothing.
"""

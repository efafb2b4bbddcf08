"""Nodes that come, go, drain and are fenced, and the clearing away of what a lost node had.

It requeues nothing itself: `submissions` does when a node is gone.
"""

"""Checkpoints of placed jobs: asked for, taken from each node, put together, stored, restored.

The job's script node leads; helpers of other nodes send their parts. Files are copied by `staging`, never here.
"""

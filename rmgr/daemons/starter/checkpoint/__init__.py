"""Checkpoints of placed jobs: asked for, taken from each node, put together, stored, restored.

The node of the job's script leads; Starters of the helpers collect the files of theirs.
"""

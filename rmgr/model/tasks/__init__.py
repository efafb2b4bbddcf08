"""Records of work: arrays, blocks, submissions, outcomes, placement, requests to the leader.

They are read and written as they are in znodes and in the store. They know `base`, and nothing of nodes.
"""

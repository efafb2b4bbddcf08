"""Holds what a Starter's other rooms share: claimed blocks, fenced commits, the gate, the store's I/O threads, rows that become files.

It knows nothing of slots, jobs or scheduling, and imports no other room of the Starter.
"""

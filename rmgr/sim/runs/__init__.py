"""Experiments and sweeps: runs as plain values, in several processes, with their measures and files.

This room uses `engine` and `models`; policies are given by name or as objects.
"""

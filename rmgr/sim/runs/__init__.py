"""Experiments and sweeps: runs as plain values, over processes, with their measures and their files.

It uses `engine` and `models`; policies come by name or as objects.
"""

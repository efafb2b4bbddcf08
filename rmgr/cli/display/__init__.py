"""Draws answers: tables with chosen and sorted columns, JSON shapes, lines of queue classes.

The room takes views and records, and may ask for the width of the terminal. It must not ask the cluster anything.
"""

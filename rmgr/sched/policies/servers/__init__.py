"""Policies that choose servers for calls (paper 004). One idea a file; names and presets stand in the catalogue.

May touch: the draft of a partition of calls and the predictors. Must not: place jobs, or remember anything but notes.
"""

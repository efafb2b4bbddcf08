"""Nouns of live calls (paper 004): interfaces of functions, formulas of their cost, what arguments fit, how arrays travel.

One copy serves client, gateway, server and the worker of a call. May touch: base nouns, decoders, and numpy inside functions that need it.
Must not: choose servers, or keep anything but interfaces that were read.
"""

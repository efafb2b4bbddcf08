"""Nouns of live calls (paper 004): interfaces of functions, formulas of their cost, which arguments fit, how arrays travel.

Client, gateway, server and worker of a call share one copy. May use base nouns, decoders, and numpy inside functions that need it.
Must not choose servers, or keep anything but interfaces that were read.
"""

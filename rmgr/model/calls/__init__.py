"""Functions that servers offer for calls (paper 004): their interfaces, what a call of one costs, how its values travel.

Pure. May touch: the tree of errors, numpy where it is there. Must not: know messages, files or processes.
"""

"""What is promised of live calls (paper 004): whom a client asks next, what one life of a server executes, which lives are over.

Pure: records in, steps and orders out. May touch: the tree of errors. Must not: read a clock, know messages, or choose servers.
"""

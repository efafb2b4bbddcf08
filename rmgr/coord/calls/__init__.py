"""The promises about live calls (paper 004): whom a client asks next, what one life of a server executes, and which lives are over.

Pure: records in, steps and orders out. May use the tree of errors. Must not read a clock, know messages, or choose servers.
"""

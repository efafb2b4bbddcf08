"""The session of one command line: global options, connections, questions to the leader, errors and exit codes.

Commands get a `Session` and ask through it. The room uses the client and its procedures, and must not import a command.
"""

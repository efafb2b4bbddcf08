"""Options and lists of jobs become requests of `client.commands`, which checks and submits them; the dry run.

The room parses, and prints dry runs. It must not decide what is submitted, nor wait for work.
"""

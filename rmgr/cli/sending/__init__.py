"""From options or a file of jobs to a durable submission: requests, scripts and files that travel, the dry run.

The room builds requests and hands them to the client, which submits. It must not wait for work, nor print results.
"""

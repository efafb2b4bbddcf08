"""Serves the runner with kernel calls, containment, privileges, processors, output files, environment, the shared page.

Each file is about one thing of the operating system. It knows no command, no worker and no protocol.
"""

"""What the runner needs of the operating system: kernel calls, containment, privileges, processors, output files, environment, the shared
page.

Each file is about one thing. It knows no command, no worker and no protocol.
"""

"""The input of a simulation: jobs, traces in the Standard Workload Format, events besides the jobs, named random streams.

It decides what arrives and what breaks, and when. It knows no machine and no policy.
"""

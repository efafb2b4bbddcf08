"""Makes the input of a simulation: jobs, traces in the Standard Workload Format, events beside the jobs, named streams of chance.

It says what arrives and what breaks, and when. It knows no machine and no policy.
"""

"""Programs that make load for benches, code that starts them and watches their cost, and functions that workers run.

Programs run as separate processes and speak to a bench in lines of JSON. They measure nothing themselves.
"""

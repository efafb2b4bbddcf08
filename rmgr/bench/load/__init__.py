"""Programs that make load for benches, what starts them and watches its cost, and functions that workers run.

Programs run as processes of their own, and speak to a bench in lines of JSON. They measure nothing themselves.
"""

"""Programs that make load for benches, and what watches its cost.

They run as processes of their own, and speak to a bench in lines of JSON. They measure nothing themselves.
"""

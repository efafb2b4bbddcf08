"""The table of placed jobs and what is stored of it: records, reservations, views, what-if.

It reads and writes; it neither plans nor commits starts.
"""

"""daemons"""

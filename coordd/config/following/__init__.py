"""What `after` of a job file may say, and whether its jobs can ever meet.

Here: the reader of the key, and the checks that need all job files. Not here: what becomes of it (core/jobs/after.py).
"""

"""What people are shown: rows, members and jobs as plain objects, and why something is as it is.

Here belongs what turns recorded facts into fields and sentences. Nothing here changes anything.
How it looks on a terminal stands in cli/show.
"""

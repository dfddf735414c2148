"""Views for people: rows, members and jobs as plain objects, and explanations.

Code that turns recorded facts into fields and sentences. Nothing here changes anything. cli/show formats it for a
terminal.
"""

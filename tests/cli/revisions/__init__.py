"""The command line of published revisions, and their methods in a real daemon."""

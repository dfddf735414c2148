"""The parts of the report's page, in plain Python.

parts.py has words, numbers and tables, charts.py and timeline.py have drawings, sections.py and jobs.py have what
stands below each other, and page.py has the frame and the style. Nothing here knows Spark or files.
"""

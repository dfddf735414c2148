"""How answers look on a terminal: tables, panels, short sentences, durations.

Here belongs what prints. What is asked, and with which options, stands in the commands one level up.
"""

"""How answers look on a terminal: tables, panels, short sentences, durations.

Everything that prints. The commands and their options are one level up.
"""

"""The figures of the report: counted and learned in Spark from the tables.

counting.py counts what was, learning.py tells what past runs say of coming ones, and collecting.py puts both into one
report. Each takes DataFrames and returns a bounded number of rows; nothing here draws, or writes a table.
"""

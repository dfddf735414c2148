"""Proof from the journals alone, in plain Python: no run was launched twice, no attempts overlapped.

reading.py finds journals and their lines, judge.py judges them, verify.py joins the two. Nothing here needs Spark or a
daemon. Each finding names files and lines.
"""

"""What Linux knows about processes, and does for them: prctl, /proc, and whether a process belongs to a run.

For the daemon and its tools. A runner has coordd/runner/kernel.py, which does without ctypes because that costs 3 ms of
every start.
"""

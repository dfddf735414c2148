"""How the daemon starts the processes of an attempt: the warm parent that forks them, the cgroup that holds them.

Only coordd/adapters/process.py uses it. The directory of an attempt, its spec, facts and record belong into process.py
and recording.py.
"""

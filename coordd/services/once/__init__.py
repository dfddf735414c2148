"""The daemon's side of `coordd exec` (coordd/once is the caller's): a program of any user holds a run.

asked.py reads what the callers ask for; methods.py has the control methods. What the commands under them ask (owner,
commit, inputs) is answered in services/guarding/held.py.
"""

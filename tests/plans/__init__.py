"""`coordctl plan` against brute force: random edits of job files, and every fire time found by looking at each day.

oracle      the fire times of a described schedule, without the code that is tested
edits       a random edit from a seed, as job files
__main__    make plans: EDITS=10000
"""

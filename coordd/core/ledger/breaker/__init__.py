"""The breakers of jobs: after runs that failed in a row, a job's runs are rejected for a while; then one run tries.

Here belong the texts (text.py): what a policy says of a job's breaker, and its state as the ledger keeps it; and the
rule (rule.py), which counts the ends of runs and judges claims.
"""

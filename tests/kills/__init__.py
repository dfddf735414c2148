"""Kills, a thousand times: owners of runs are killed around their fire times, on RabbitMQ and Redis.

    program     the program of every run; it records its life    stage     five daemons, the kills, the restarts
    ticks       `coordd exec --tick` from five crontabs            owners    scheduled jobs whose owners are killed
    pool        a pool of four under hundreds of triggers        following  one run, many after it, one after these
    command     `make ticks`, `make owners`, `make pool`, `make diamond`
    judge       judges the programs' records (pure)              callers   what became of each `coordd exec` (pure)
    slots       how long a free slot was not used (pure)

A short part of each is tests/system/trouble/test_kills.py; of the diamond, tests/core/groups/test_opening.py.
"""

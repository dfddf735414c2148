"""Kills, a thousand times: owners of runs are killed around their fire times, on RabbitMQ and Redis.

    program     the program of every run; it records its life    stage     five daemons, the kills, the restarts
    ticks       `coordd exec --tick` from five crontabs            owners    scheduled jobs whose owners are killed
    judge       judges the programs' records (pure)              command   `make ticks`, `make owners`

A short part of both is tests/system/trouble/test_kills.py.
"""

"""Chaos on real processes: daemons, broker and ledger in network namespaces, with faults for a bounded time. Then the
result is judged.

    net         namespaces on a bridge; who reaches whom        cluster     the servers and the daemons in them
    program     every job's program; it records each launch     load        jobs and a stream of triggers
    grants      the granted attempts, seen from outside         faults      each kind: strike and mend
    nemesis     the faults and their times, from a seed         checker     judges the programs' records (pure)
    verdict     the table and the file

`make chaos` is tests/chaos/command.py. A short part of it is tests/system/trouble/test_chaos.py.
"""

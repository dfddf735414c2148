"""Chaos on real processes: daemons, broker and ledger in network namespaces, harmed for a bounded time, then judged.

    net         namespaces on a bridge; who reaches whom        cluster     the servers and the daemons in them
    program     what every job runs: it keeps the count         load        jobs and a stream of triggers
    grants      who has been granted what, seen from outside    faults      each kind: strike and heal
    nemesis     what strikes when, drawn from a seed            checker     what the programs wrote, judged (pure)
    verdict     the table and the file

`make chaos` is tests/chaos/command.py; a slice of it is tests/system/trouble/test_chaos.py.
"""

"""coordd: run every Spark job once, even when an edge node dies.

The layers, from outer to inner; each may import only what stands to its right or below
(tests/test_tidy.py holds this map as data and enforces it):

    cli -> daemon -> connecting, launching -> services | adapters (never each other) -> config, ports -> core -> errors
    runner  -> adapters, ports, core    the process that holds one lease and one spark-submit
    outcomes -> services, adapters, config, core, plugins    the programs of the runs of sinks and publishers
    once    -> runner, adapters, core   `coordd exec`: a runner in the foreground, for a command of its caller
    client  -> calls, answers, adapters, errors    the control socket, for Python programs; calls: its methods;
                                        answers: its types
    single  -> once, errors             `coordd exec` for functions and blocks of a Python program
    plugins -> nothing                  what plug-ins get, and the process that calls one
    guard   -> nothing                  for Spark drivers: who owns the run, and publication under a commit
    resilience -> guard                 for Spark drivers: sections that are tried again, inputs that are given up
    history -> words, events, jobs of the core    PySpark: runs inside Spark, never inside the daemon

    core/      ledger    the rules of the one authority, and what is asked of it
               jobs      what a job is, when it fires, what it is started with
               groups    the runs that a job has for each of some values
               wire      messages between nodes: events, envelopes, windows against replay
               members   who is there, who is silent, who comes first
               runs      what this node is after: pursuits, sweeps, triggers, witnesses
               checks    how results become the state of a check, and what a state means for jobs
               node      one node, which joins all of these; each input returns what the shell is to do
    config/    files and the environment, checked, with a sentence for each mistake
    services/  the tasks of the daemon; control/ is the socket of people, views/ what they read
    adapters/  bus/ (unix, RabbitMQ, Redis), ledger/ (SQLite, Redis), disk/, processes, logs
    cli/       coordd and coordctl

This module imports nothing, so that Spark can load coordd.history without trio and a runner can start
with the standard library alone.
"""

__version__ = "0.1.0"

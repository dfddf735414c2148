"""Finds the line of a program's output that says why the program failed."""

from __future__ import annotations

import pytest

from coordd.core.redaction import LINE_LENGTH_MAX, telling_line

PYTHON = """\
loading
Traceback (most recent call last):
  File "/opt/etl/main.py", line 12, in <module>
    main()
ValueError: no column "amount" in /data/in
"""

SPARK = """\
26/11/22 08:00:01 INFO SparkContext: Running Spark version 3.5.1
Exception in thread "main" org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.scheduler.DAGScheduler.failJob(DAGScheduler.scala:2844)
\t... 12 more
Caused by: java.io.FileNotFoundException: /data/in/part-0 (No such file or directory)
\tat java.base/java.io.FileInputStream.open0(Native Method)
26/11/22 08:00:09 WARN ShutdownHookManager: failed to delete /tmp/spark-1
26/11/22 08:00:09 INFO ShutdownHookManager: Deleting directory /tmp/spark-2
"""


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("", ""),
        ("\n  \n", ""),
        ("one\ntwo\n", "two"),
        (PYTHON, 'ValueError: no column "amount" in /data/in'),
        (SPARK, "Caused by: java.io.FileNotFoundException: /data/in/part-0 (No such file or directory)"),
        ("26/11/22 08:00:09 INFO only\n", ""),
        ("sh: 1: spark-sql: not found\nbye\n", "sh: 1: spark-sql: not found"),
        (
            "cannot log in to jdbc:pg://me:secret@db/x?password=secret\n",
            "cannot log in to jdbc:pg://me:***@db/x?password=***",
        ),
        ("error: \x1b[31mred\x1b[0m\tand tab\n", "error:  [31mred [0m and tab"),
    ],
)
def test_the_line_that_tells(output: str, line: str) -> None:
    assert telling_line(output.splitlines()) == line


def test_it_is_one_line_of_bounded_length() -> None:
    line = telling_line(["error: " + "x" * 10_000])
    assert len(line) == LINE_LENGTH_MAX
    assert line.endswith("…")


def test_below_a_refused_login_the_line_that_says_why_is_chosen() -> None:
    lines = [
        'Exception in thread "main" org.apache.hadoop.security.KerberosAuthException: failure to login',
        "Caused by: javax.security.auth.login.LoginException: Client not found in Kerberos database (6)",
        "\tat com.sun.security.auth.module.Krb5LoginModule.login(Krb5LoginModule.java:592)",
        "Caused by: KrbException: Identifier doesn't match expected value (906)",
    ]

    assert telling_line(lines) == lines[1]
    assert telling_line(lines[2:]) == lines[3]

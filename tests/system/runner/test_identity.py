"""Real spark-submit with identities of a real KDC, in local mode: by keytab, impersonation by ticket, refused."""

from __future__ import annotations

import os
from pathlib import Path

from support.servers.kdc import REALM, Kdc

from coordd.adapters.disk.files import write_atomic
from coordd.adapters.spark import AttemptInfo, SparkDefaults, build
from coordd.core.jobs.job import Job, SparkSubmit
from system.lab.runner_lab import Attempt, World, world_in

SPARK_LIMIT_S = 240.0  # JVMs load their classes, on a machine that does other work too

LOGIN = "javax.security.auth.login.LoginException"

# No session: only the JVM in which spark-submit has logged in.
WHO = """
import sys
from pyspark.java_gateway import launch_gateway
users = launch_gateway().jvm.org.apache.hadoop.security.UserGroupInformation
with open(sys.argv[1], "w") as file:
    print(users.getCurrentUser().toString(), file=file)
"""


def submit(
    world: World, env: dict[str, str], *, keytab: str = "", principal: str = "", proxy_user: str = ""
) -> Attempt:
    """Start the script the way a daemon does."""
    application = world.path / "who.py"
    application.write_text(WHO)
    spec, attempt = world.spec([])
    launch = SparkSubmit(
        str(application),
        args=(str(attempt.out),),
        conf={"spark.ui.enabled": "false", "spark.driver.memory": "512m"},
        keytab=keytab,
        principal=principal,
        proxy_user=proxy_user,
        env=env,
    )
    info = AttemptInfo(spec["run"], 0, spec["token"], spec["nonce"], "edge-1", spec["fire_at"], "", attempt.directory)
    program = build(Job(name=spec["job"], digest="d", launch=launch), launch, SparkDefaults(master="local[1]"), info)
    os.makedirs(attempt.directory, mode=0o700, exist_ok=True)
    write_atomic(program.secrets_path, program.secrets.encode())
    world.launcher.start({**spec, "argv": program.argv, "env": {**program.env, "MARK": spec["env"]["MARK"]}})
    return attempt


def test_spark_logs_in_by_keytab_impersonates_by_ticket_and_says_why_it_may_not(tmp_path: Path) -> None:
    with Kdc(tmp_path / "kdc") as kdc, world_in(tmp_path) as world:
        keytab = kdc.keytab("etl.keytab", "etl")
        removed = kdc.keytab("old.keytab", "old")
        kdc.run("kadmin.local", "-r", REALM, "-q", "delprinc -force old")
        env = {**kdc.env, "HADOOP_CONF_DIR": str(kdc.hadoop())}
        ticket = {**env, "KRB5CCNAME": str(kdc.ticket("cache", keytab, "etl"))}
        by_keytab = submit(world, env, keytab=str(keytab), principal=f"etl@{REALM}")
        refused = submit(world, env, keytab=str(removed), principal=f"old@{REALM}")
        assert by_keytab.over(SPARK_LIMIT_S).state == "success"
        assert by_keytab.out.read_text() == f"etl@{REALM} (auth:KERBEROS)\n"
        row = refused.over(SPARK_LIMIT_S)
        assert (row.state, row.reason) == (
            "failure",
            f"exit code 1: Caused by: {LOGIN}: Client not found in Kerberos database (6) - CLIENT_NOT_FOUND",
        )
        impersonates = submit(world, ticket, proxy_user="bob")
        assert impersonates.over(SPARK_LIMIT_S).state == "success"
        assert impersonates.out.read_text() == f"bob (auth:PROXY) via etl@{REALM} (auth:KERBEROS)\n"

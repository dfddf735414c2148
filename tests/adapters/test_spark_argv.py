"""From a job to an argv and an environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coordd import guard
from coordd.adapters.spark import (
    ENV_FILE_BYTES_MAX,
    AttemptInfo,
    ProgramSpec,
    SparkDefaults,
    build,
    command_problem,
    find_java,
    find_submit,
    pip_spark_home,
    read_env_file,
    redacted,
    remarks,
)
from coordd.core.jobs.applications import run_mark, yarn_tags
from coordd.core.jobs.job import Command, Job, SparkSubmit
from coordd.errors import UnavailableError

FACTS = AttemptInfo(
    "nightly@2026-12-01T02:00:00Z",
    1,
    1700000000000001,
    "abcdef",
    "edge-1",
    1796090400.0,
    "/run/coordd/coordd.sock",
    "/run/coordd/runs/x",
    cluster="prod",
)
TAGS = ",".join(yarn_tags("prod", FACTS.run, FACTS.attempt, FACTS.token))


def executable(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A machine with a Spark and a Java of its own, and a daemon that has secrets in its environment."""
    executable(tmp_path / "spark/bin/spark-submit")
    (tmp_path / "spark/jars").mkdir()
    executable(tmp_path / "java/bin/java")
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/home/etl",
        "USER": "etl",
        "LANG": "en_US.UTF-8",
        "SPARK_HOME": str(tmp_path / "spark"),
        "JAVA_HOME": str(tmp_path / "java"),
        "NOTIFY_SOCKET": "/run/notify",
        "WATCHDOG_USEC": "1",
        "CREDENTIALS_DIRECTORY": "/run/c",
        "DB_PASSWORD": "x",
    }


def spark(**fields: object) -> Job:
    return Job(name="nightly", digest="d", launch=SparkSubmit("/jobs/app.py", **fields))  # type: ignore[arg-type]  # as in a job file


def run(job: Job, defaults: SparkDefaults, environ: dict[str, str]) -> ProgramSpec:
    return build(job, job.launch, defaults, FACTS, environ)


def conf_of(program: ProgramSpec) -> dict[str, str]:
    """The settings for spark-submit; all of them are in the file."""
    assert "--conf" not in program.argv
    assert option(program.argv, "--properties-file") == program.secrets_path == f"{FACTS.directory}/secrets.properties"
    return dict(line.split("=", 1) for line in program.secrets.splitlines() if "=" in line)


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_a_whole_spark_job(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "p.conf").write_text("spark.executor.memory 1g\nspark.site yes \\")
    job = spark(
        args=("--day", "2026-12-01", "two words", "$HOME;rm"),
        master="yarn",
        deploy_mode="cluster",
        conf={"spark.executor.memory": "2g"},
        py_files=("a.py", "b.zip"),
        files=("/f1", "/f2"),
        jars=("/j.jar",),
        name="sales of the day",
        keytab="/k",
        principal="etl@EX",
        proxy_user="bob",
        properties_file=f"{tmp_path}/p.conf",
    )
    program = run(job, SparkDefaults(), environ)
    assert program.argv == [
        f"{tmp_path}/spark/bin/spark-submit",
        "--master",
        "yarn",
        "--deploy-mode",
        "cluster",
        "--name",
        "sales of the day",
        "--properties-file",
        "/run/coordd/runs/x/secrets.properties",
        "--py-files",
        "a.py,b.zip",
        "--files",
        "/f1,/f2",
        "--jars",
        "/j.jar",
        "--keytab",
        "/k",
        "--principal",
        "etl@EX",
        "--proxy-user",
        "bob",
        "/jobs/app.py",
        "--day",
        "2026-12-01",
        "two words",
        "$HOME;rm",
    ]
    assert program.secrets == (
        "spark.executor.memory 1g\nspark.site yes \\\n\n"
        "spark.coordd.attempt=1\nspark.coordd.run=nightly@2026-12-01T02:00:00Z\n"
        f"spark.coordd.token=1700000000000001\nspark.coordd.token.nonce=abcdef\nspark.executor.memory=2g\nspark.yarn.submit.waitAppCompletion=false\nspark.yarn.tags={TAGS}\n"
    )


def test_a_driver_on_standalone_has_its_marks_in_a_property_and_no_nonce(environ: dict[str, str]) -> None:
    conf = conf_of(run(spark(master="spark://m:7077", deploy_mode="cluster"), SparkDefaults(), environ))

    assert conf["spark.coordd.mark"].split(".")[2:] == ["1", "1700000000000001"]
    assert conf["spark.standalone.submit.waitAppCompletion"] == "false"
    assert "spark.coordd.token.nonce" not in conf, "it would be in the driver's command line"


def test_a_daemon_whose_uid_no_list_of_users_has_starts_programs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 4242424)
    job = Job(name="nightly", digest="d", launch=Command(("true",)))
    env = build(job, Command(("true",)), SparkDefaults(), FACTS, {}).env
    assert (env["HOME"], env["USER"]) == ("/", "4242424")
    env = build(job, Command(("true",)), SparkDefaults(), FACTS, {"HOME": "/data", "USER": "etl"}).env
    assert (env["HOME"], env["USER"]) == ("/data", "etl")
    assert command_problem(Command(("true",)), "", SparkDefaults(), {}) == ""
    assert command_problem(Command(("true",)), "nosuchuser", SparkDefaults(), {}).startswith("run_as: there is no user")


def test_the_environment_is_built_from_empty(environ: dict[str, str]) -> None:
    site = SparkDefaults(env={"HADOOP_CONF_DIR": "/etc/hadoop"})
    program = run(spark(env={"TZ": "UTC"}), site, environ)
    assert program.env == {
        **{name: environ[name] for name in ("PATH", "HOME", "USER", "LANG", "SPARK_HOME", "JAVA_HOME")},
        "HADOOP_CONF_DIR": "/etc/hadoop",
        "TZ": "UTC",
        "COORDD_RUN": FACTS.run,
        "COORDD_JOB": "nightly",
        "COORDD_ATTEMPT": "1",
        "COORDD_TOKEN": "1700000000000001",
        "COORDD_NONCE": "abcdef",
        "COORDD_NODE": "edge-1",
        "COORDD_FIRE_TIME": "2026-12-01T02:00:00Z",
        "COORDD_SOCKET": "/run/coordd/coordd.sock",
        "COORDD_GUARD_COMMAND": f"{sys.executable} -I -S {guard.__file__}",
    }


def test_the_job_cannot_say_that_it_is_another(environ: dict[str, str]) -> None:
    job = spark(env={"COORDD_TOKEN": "9"}, conf={"spark.coordd.token": "9", "spark.yarn.tags": "mine"})
    program = run(job, SparkDefaults(), environ)
    assert program.env["COORDD_TOKEN"] == str(FACTS.token)
    assert conf_of(program)["spark.coordd.token"] == str(FACTS.token)
    assert conf_of(program)["spark.yarn.tags"] == TAGS


def test_the_job_overrides_the_site_which_overrides_its_file(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("# site\n\nexport A=file\nB='file b'\nC = file\n")
    site = SparkDefaults(env={"B": "site", "C": "site"}, env_file=str(file))
    env = run(spark(env={"C": "job"}), site, environ).env
    assert (env["A"], env["B"], env["C"]) == ("file", "site", "job")
    assert read_env_file(str(file))["B"] == "file b"


def test_an_env_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("A=1\n#" + "x" * ENV_FILE_BYTES_MAX + "\nB=2\n")

    with pytest.raises(UnavailableError, match=r"spark\.env_file: .*env: more than 1048576 characters"):
        read_env_file(str(file))


@pytest.mark.parametrize("text", ["no equals sign\n", "9A=1\n", "A=1\0002\n", None])
def test_an_env_file_that_cannot_be_used(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "env"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UnavailableError, match=r"spark\.env_file"):
        read_env_file(str(file))


def test_kubernetes_drivers_carry_the_tag(environ: dict[str, str]) -> None:
    label = "spark.kubernetes.driver.label.coordd-run"
    program = run(spark(master="k8s://https://api"), SparkDefaults(), environ)
    assert conf_of(program)[label] == run_mark("prod", FACTS.run)
    assert label not in conf_of(run(spark(), SparkDefaults(), environ))


def test_the_site_master_is_the_default(environ: dict[str, str]) -> None:
    assert option(run(spark(), SparkDefaults(master="spark://m"), environ).argv, "--master") == "spark://m"


SECRETS = {
    "spark.hadoop.fs.s3a.secret.key": "s3 \\cret\n",
    "spark.ssl.keyPassword": "pässword",
    "spark.my.token": " to#ken",
    "spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net": "azu=re",
    "spark.es.net.http.auth.pass": "elastic",
}


def with_secrets(environ: dict[str, str], **fields: object) -> ProgramSpec:
    return run(spark(conf={**SECRETS, "spark.a": "b"}, **fields), SparkDefaults(), environ)


def test_no_setting_and_no_nonce_is_in_an_argv(environ: dict[str, str]) -> None:
    program = with_secrets(environ)
    said = " ".join(program.argv)
    assert not any(value.strip() in said for value in (*SECRETS.values(), FACTS.nonce))
    assert "spark.hadoop.fs.s3a.secret.key=s3 \\\\cret\\n\n" in program.secrets
    assert "spark.my.token=\\ to#ken\nspark.ssl.keyPassword=pässword\n" in program.secrets
    assert conf_of(program)["spark.es.net.http.auth.pass"] == "elastic"
    assert conf_of(run(spark(), SparkDefaults(), environ))["spark.coordd.token.nonce"] == FACTS.nonce


@pytest.mark.parametrize("where", ["job", "site", "defaults"])
def test_our_file_does_not_hide_what_would_be_read(environ: dict[str, str], tmp_path: Path, where: str) -> None:
    file = tmp_path / ("spark/conf/spark-defaults.conf" if where == "defaults" else "mine.conf")
    file.parent.mkdir(exist_ok=True)
    file.write_text("spark.x 1")
    job = spark(conf={"spark.x": "2"}, properties_file=str(file) if where == "job" else "")
    program = run(job, SparkDefaults(properties_file=str(file) if where == "site" else ""), environ)
    assert program.secrets.startswith("spark.x 1\n\nspark.coordd")
    assert conf_of(program)["spark.x"] == "2", "the job's own setting stands behind it, and counts"


def test_a_properties_file_without_end_is_refused(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.conf").write_text("#" * (2**20 + 1))
    with pytest.raises(UnavailableError, match="more than"):
        run(spark(properties_file=f"{tmp_path}/mine.conf"), SparkDefaults(), environ)


def test_what_is_shown_has_no_secrets(environ: dict[str, str]) -> None:
    shown = redacted([*with_secrets(environ).argv, "spark.my.secret=abc"])
    assert "spark.my.secret=***" in shown
    assert not any("abcdef" in word for word in shown), "the nonce"


def test_a_command(environ: dict[str, str]) -> None:
    job = Job(name="j", digest="d", launch=Command(("/bin/load", "1 2"), env={"A": "1 2"}, cwd="/data"))
    del environ["JAVA_HOME"], environ["SPARK_HOME"]
    program = run(job, SparkDefaults(), environ)
    assert (program.argv, program.cwd, program.env["A"]) == (["/bin/load", "1 2"], "/data", "1 2")
    assert program.env["COORDD_RUN"] == FACTS.run


def test_where_spark_submit_is_looked_for(tmp_path: Path) -> None:
    configured = executable(tmp_path / "opt/my-submit")
    home = executable(tmp_path / "home/bin/spark-submit")
    on_path = executable(tmp_path / "bin/spark-submit")
    environ = {"SPARK_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin")}
    assert find_submit(configured, environ) == configured
    assert find_submit("", environ) == home
    del environ["SPARK_HOME"]
    assert find_submit("", environ) == on_path
    assert find_submit("", {"PATH": ""}) == f"{pip_spark_home()}/bin/spark-submit"


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match=r"spark.submit: /no/such is not there"):
        find_submit("/no/such", {})
    with pytest.raises(UnavailableError, match=r"SPARK_HOME: /nowhere/bin/spark-submit is not there"):
        find_submit("", {"SPARK_HOME": "/nowhere"})
    file = tmp_path / "spark-submit"
    file.touch(mode=0o644)
    with pytest.raises(UnavailableError, match="may not be executed"):
        find_submit(str(file), {})
    monkeypatch.setattr("coordd.adapters.spark.pip_spark_home", lambda: "")
    with pytest.raises(UnavailableError, match="no spark-submit"):
        find_submit("", {"PATH": str(tmp_path / "empty")})
    with pytest.raises(UnavailableError, match="no Java"):
        find_java({"PATH": str(tmp_path / "empty")})
    with pytest.raises(UnavailableError, match="JAVA_HOME"):
        find_java({"JAVA_HOME": str(tmp_path / "empty")})


def test_the_pip_package_runs_on_this_python(environ: dict[str, str]) -> None:
    del environ["SPARK_HOME"]
    env = run(spark(), SparkDefaults(), environ).env
    assert env["PYSPARK_PYTHON"] == sys.executable
    assert env["SPARK_HOME"] == pip_spark_home()
    kept = run(spark(env={"PYSPARK_PYTHON": "/usr/bin/python3"}), SparkDefaults(), environ).env
    assert kept["PYSPARK_PYTHON"] == "/usr/bin/python3"


@pytest.mark.parametrize("master", ["yarn", "k8s://https://api", "spark://m:7077"])
def test_this_python_is_for_programs_on_this_machine_alone(environ: dict[str, str], master: str) -> None:
    del environ["SPARK_HOME"]
    here = run(spark(), SparkDefaults(master=master), environ).env
    assert {key: value for key, value in here.items() if "PYTHON" in key} == {"PYSPARK_DRIVER_PYTHON": sys.executable}
    elsewhere = run(spark(master=master, deploy_mode="cluster"), SparkDefaults(), environ).env
    assert [key for key in elsewhere if "PYTHON" in key] == []
    own = run(spark(master=master, env={"PYSPARK_PYTHON": "/opt/python"}), SparkDefaults(), environ).env
    assert "PYSPARK_DRIVER_PYTHON" not in own, "it names the driver's too"


def test_a_standalone_master_supervises_no_driver_of_ours_whatever_the_site_says(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "site.conf").write_text("spark.driver.supervise=true\n")
    site = SparkDefaults(master="spark://m:7077", properties_file=f"{tmp_path}/site.conf")

    assert conf_of(run(spark(deploy_mode="cluster"), site, environ))["spark.driver.supervise"] == "false"
    assert conf_of(run(spark(), site, environ))["spark.driver.supervise"] == "true", "it says nothing about client mode"


def wrapper(environ: dict[str, str], tmp_path: Path) -> str:
    """A spark-submit outside its Spark, as in the packages of distributions: it calls another one."""
    del environ["SPARK_HOME"]
    return executable(tmp_path / "usr/bin/spark-submit")


def said_of(job: Job, defaults: SparkDefaults, environ: dict[str, str]) -> list[str]:
    assert isinstance(job.launch, SparkSubmit)
    return [text for text, _ in remarks(job.launch, defaults, run(job, defaults, environ))]


def test_a_spark_submit_whose_spark_is_not_known_is_told(environ: dict[str, str], tmp_path: Path) -> None:
    submit = wrapper(environ, tmp_path)
    defaults = SparkDefaults(submit=submit)
    (tmp_path / "site.conf").write_text("spark.site yes\n")

    [(text, advice)] = remarks(SparkSubmit("/a.py"), defaults, run(spark(), defaults, environ))
    assert text == f"{submit} is outside its Spark, and no SPARK_HOME is set: its spark-defaults.conf is not read"
    assert "SPARK_HOME in [spark] env" in advice
    assert said_of(spark(properties_file=f"{tmp_path}/site.conf"), defaults, environ) == []
    assert said_of(spark(), defaults._replace(properties_file=f"{tmp_path}/site.conf"), environ) == []
    for name in ("SPARK_HOME", "SPARK_CONF_DIR"):
        assert said_of(spark(), defaults._replace(env={name: str(tmp_path)}), environ) == []
    (tmp_path / "usr/jars").mkdir()
    assert said_of(spark(), defaults, environ) == [], "it is inside"


@pytest.mark.parametrize(
    ("line", "changes", "said"),
    [
        ("spark.master yarn", {}, "spark.master = yarn, and nights run with local[*]"),
        ("spark.submit.deployMode=cluster", {}, "spark.submit.deployMode = cluster, and nights run with client"),
        ("spark.master local[*]", {}, ""),
        ("spark.master yarn", {"master": "local[2]"}, ""),
    ],
)
def test_a_master_of_the_sites_defaults_that_does_not_count_is_told(
    environ: dict[str, str], tmp_path: Path, line: str, changes: dict[str, str], said: str
) -> None:
    (tmp_path / "spark/conf").mkdir()
    file = tmp_path / "spark/conf/spark-defaults.conf"
    file.write_text(f"{line}\n")

    found = said_of(spark(**changes), SparkDefaults(), environ)

    assert found == ([f"{file} says {said.replace('nights run', 'the job runs')}"] if said else [])
    assert said_of(spark(**changes), SparkDefaults(master="yarn"), environ) == [], "the site names a master"


def test_traces_and_lineage_reach_the_driver_and_a_parent_of_the_jobs_own_stays(environ: dict[str, str]) -> None:
    parent = {"spark.openlineage.parentRunId": "r", "spark.openlineage.rootParentRunId": "r"}
    facts = FACTS._replace(traceparent="00-a-b-01", parent=parent)
    job = spark()
    program = build(job, job.launch, SparkDefaults(), facts, environ)
    assert program.env["TRACEPARENT"] == conf_of(program)["spark.coordd.traceparent"] == "00-a-b-01"
    assert {key: value for key, value in conf_of(program).items() if "openlineage" in key} == parent
    own = {"spark.openlineage.parentRunId": "mine"}
    job = spark(conf=own)
    program = build(job, job.launch, SparkDefaults(), facts, environ)
    assert {key: value for key, value in conf_of(program).items() if "openlineage" in key} == own
    without = run(spark(), SparkDefaults(), environ)
    assert "TRACEPARENT" not in without.env
    assert "openlineage" not in without.secrets

"""Job files: every key, every mistake, and one bad file that disables one job."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.samples import EVERY_KEY

from coordd.config import jobkeys
from coordd.config.jobfile import JobSet, check, digest, load_job, load_jobs
from coordd.config.sections import Config, NodeConfig
from coordd.config.settings import load
from coordd.config.tomlfile import Places, Problem
from coordd.core.jobs.job import Blackout, Command, Job, Retry, SparkSubmit, iso
from coordd.core.jobs.schedule import jitter_offset, next_fire

CONFIG = Config(node=NodeConfig(name="edge-1"))
EXAMPLES = Path(__file__).parents[2] / "deploy" / "jobs.d"
SPARK = '[spark]\napplication = "/opt/a.py"\n'
COMMAND = '[command]\nargv = ["/bin/true"]\n'


def load_text(directory: Path, text: str | bytes, name: str = "j") -> JobSet:
    data = text if isinstance(text, bytes) else text.encode()
    (directory / f"{name}.toml").write_bytes(data)
    return load_jobs(str(directory), CONFIG)


def test_a_small_file_gets_the_documented_defaults(tmp_path: Path) -> None:
    found = load_text(tmp_path, SPARK)
    assert found.problems == {}
    job = found.jobs["j"]
    assert job.launch == SparkSubmit(application="/opt/a.py")
    assert job.schedule is None
    assert (job.misfire, job.overlap, job.on_lost, job.start_within_s) == ("once", "forbid", "relaunch", 3600.0)
    assert (job.lease_s, job.priority, job.timeout_s, job.tags, job.params) == (60.0, 0, 0.0, (), {})
    assert job.retry == Retry()
    assert job.placement == "spread"


def test_every_key_arrives(tmp_path: Path) -> None:
    text = EVERY_KEY
    found = load_text(tmp_path, text)
    keys = ("misfire", "trigger", "after")
    assert [(one.key, one.severity) for one in found.problems["j"]] == [(key, "warning") for key in keys]
    job = found.jobs["j"]
    schedule = job.schedule
    assert schedule is not None
    assert (schedule.cron, schedule.timezone, schedule.offset_s) == (
        "30 2 * * *",
        "Europe/Berlin",
        jitter_offset("j", 300.0),
    )
    assert iso(schedule.start) == "2025-12-31T23:00:00Z"  # midnight in Berlin
    assert iso(schedule.end) == "2027-01-01T00:00:00Z"
    assert iso(schedule.blackout[0].start) == "2026-04-30T22:00:00Z"
    assert iso(schedule.blackout[0].end) == "2026-05-01T22:00:00Z"
    assert schedule.blackout[1] == Blackout(cron="0 0 * * SUN", duration_s=86400.0)
    assert job.launch == SparkSubmit(
        application="hdfs:///a.jar",
        args=("{region}", "line\nline", ""),
        master="spark://h1:7077,h2:7077",
        deploy_mode="cluster",
        conf={"spark.executor.memory": "4g", "spark.executor.cores": "2", "spark.speculation": "true"},
        py_files=("/a.zip",),
        files=("/f#alias",),
        jars=("/j.jar",),
        name="{job} {region}",
        keytab="/k",
        principal="p@R",
        env={"A": "1"},
        properties_file="/p.conf",
        class_name="com.example.Main",
        lineage=True,
    )
    assert job.retry == Retry(3, 0, 60.0, "exponential", (2, -9), ("OutOfMemory.*",), 0.25, 2)
    assert job.params == {"region": "eu", "n": "3", "full": "true"}
    assert (job.misfire, job.overlap, job.on_lost, job.placement) == ("all", "queue", "hold", "first")
    assert (job.tags, job.priority, job.timeout_s, job.lease_s) == (("gpu",), -3, 90.0, 120.0)
    assert (job.description, job.owner, job.timezone) == ("several\nlines", "data", "Europe/Berlin")
    assert job.start_within_s == 7200.0


def test_every_field_of_a_job_is_filled_by_a_key_or_put_together() -> None:
    """A key in the table is read, shown and disclosed without another line elsewhere."""
    put_together = {
        *("name", "digest", "launch", "schedule", "held", "schedule_text", "retry", "breaker", "pool_size", "triggers")
    }
    put_together |= {"checks", "uses", "sinks"}

    filled = [key.field for key in jobkeys.PLAIN.values()]
    assert sorted({*filled, *put_together}) == sorted(Job.__struct_fields__)
    assert len(set(filled)) == len(filled)


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        (SPARK, "spread"),
        (SPARK + 'deploy_mode = "cluster"\nmaster = "yarn"\n', "first"),
        (COMMAND, "first"),
        ('placement = "spread"\n' + COMMAND, "spread"),
    ],
)
def test_placement_spreads_drivers_that_compute(tmp_path: Path, text: str, placement: str) -> None:
    assert load_text(tmp_path, text).jobs["j"].placement == placement


def test_the_examples_load() -> None:
    found = load_jobs(str(EXAMPLES), CONFIG)
    assert found.problems == {}
    assert set(found.jobs) == {"hourly-events", "load-drop", "nightly-sales", "sweep-tmp"}
    assert isinstance(found.jobs["sweep-tmp"].launch, Command)


BAD_JOBS = [
    # text, key, what else is said
    ("", "spark", "expected either [spark] or [command], found neither"),
    (SPARK + COMMAND, "spark", "found both"),
    ("spark = 5\n", "spark", "expected a table, found the number 5"),
    ("[spark]\nargs = []\n", "spark.application", "found nothing"),
    ('[spark]\napplication = "a.py"\n', "spark.application", "expected an absolute path or a URI"),
    ('[spark]\napplication = "--conf"\n', "spark.application", "looks like an option"),
    ('[spark]\napplication = "/opt/a\\u0007.py"\n', "spark.application", "control character"),
    ('[spark]\napplication = ""\n', "spark.application", "expected an absolute path or a URI"),
    (SPARK + 'aplication = "/b"\n', "spark.aplication", 'did you mean "application"?'),
    (SPARK + 'args = "x"\n', "spark.args", "expected a list of texts"),
    (SPARK + 'args = ["a\\u0000b"]\n', "spark.args", "NUL"),
    (SPARK + 'args = ["{region}"]\n', "spark.args", '"{region}" is not declared under params'),
    (SPARK + 'args = ["{"]\n', "spark.args", "write {{ and }} for braces"),
    (SPARK + 'deploy_mode = "yarn"\n', "spark.deploy_mode", "expected one of client, cluster"),
    (SPARK + 'deploy_mode = "cluster"\n', "spark.deploy_mode", "name a master, such as yarn"),
    (SPARK + 'master = "--class"\n', "spark.master", "does not begin with"),
    (SPARK + 'jars = ["/a.jar,/b.jar"]\n', "spark.jars", "without commas"),
    (SPARK + 'keytab = "k"\n', "spark.keytab", "expected an absolute path"),
    (SPARK + 'env = { "A B" = "1" }\n', "spark.env", "not a valid name of an environment variable"),
    (SPARK + 'env = { COORDD_TOKEN = "1" }\n', "spark.env", "coordd sets"),
    (SPARK + 'conf = { "spark.yarn.tags" = "x" }\n', "spark.conf", "coordd uses it to find a run's applications"),
    (SPARK + 'conf = { spark.yarn.tags = "x" }\n', "spark.conf", "coordd uses it to find a run's applications"),
    (SPARK + 'conf = { "spark.coordd.token" = "x" }\n', "spark.conf", "spark.coordd.*"),
    (SPARK + 'conf = { "spark.submit.deployMode" = "cluster" }\n', "spark.conf", "write deploy_mode"),
    (SPARK + 'conf = { "spark.master" = "yarn" }\n', "spark.conf", "write master"),
    (SPARK + 'conf = { "hadoop.x" = "y" }\n', "spark.conf", 'begin with "spark."'),
    (SPARK + 'conf = { "spark.x" = "a\\nb" }\n', "spark.conf", "control character"),
    (SPARK + 'conf = { "spark.x" = [1] }\n', "spark.conf", "expected a table of texts"),
    ("[command]\n", "command.argv", "found nothing"),
    ("[command]\nargv = []\n", "command.argv", "found nothing"),
    ('[command]\nargv = [""]\n', "command.argv", "found nothing"),
    ('[command]\nargv = ["bin/x"]\n', "command.argv", "expected an absolute path"),
    ('[command]\nargv = ["-x"]\n', "command.argv", "expected an absolute path"),
    ('[command]\nargv = "ls -l"\n', "command.argv", "expected a list of texts"),
    ('params = { p = "/bin/x" }\n[command]\nargv = ["{p}"]\n', "command.argv", "must not choose what is run"),
    ('schedul = "@daily"\n' + SPARK, "schedul", 'did you mean "schedule"?'),
    ("schedule = 5\n" + SPARK, "schedule", "expected a text, found the number 5"),
    ('schedule = "61 * * * *"\n' + SPARK, "schedule", "bad minute"),
    ('schedule = "every 15"\n' + SPARK, "schedule", "expected a duration"),
    ('schedule = "@daily"\nend = 1971-01-01\nstart = 1972-01-01\n' + SPARK, "end", "after start"),
    ('schedule = "at 2026-12-01"\nend = 2026-11-01\n' + SPARK, "schedule", "never fires"),
    ('schedule = "@daily"\ntimezone = "Europe/Berln"\n' + SPARK, "timezone", "expected the IANA name"),
    ('schedule = "@daily"\nstart = "noon"\n' + SPARK, "start", "expected an instant"),
    ('schedule = "@daily"\nstart = 12:00:00\n' + SPARK, "start", "found a date or time"),
    ('schedule = "@daily"\njitter = "-5m"\n' + SPARK, "jitter", "expected a duration"),
    ('schedule = "@daily"\nblackout = ["x"]\n' + SPARK, "blackout", "expected a list of tables"),
    ('schedule = "@daily"\nblackout = [{ from = 2026-01-01 }]\n' + SPARK, "blackout", "expected from and to"),
    ('schedule = "@daily"\n[[blackout]]\nfrom = 2026-01-02\nto = 2026-01-01\n' + SPARK, "blackout.to", "after from"),
    ('schedule = "@daily"\n[[blackout]]\ncron = "x"\nduration = 1\n' + SPARK, "blackout.cron", "five fields"),
    ('schedule = "@daily"\n[[blackout]]\ncron = "@daily"\nduration = 0\n' + SPARK, "blackout.duration", "above zero"),
    ('schedule = "@weekly"\n[[blackout]]\ncron = "@weekly"\nduration = 1\n' + SPARK, "schedule", "never fires"),
    ('misfire = "twice"\n' + SPARK, "misfire", "expected one of skip, once, all"),
    ('overlap = "never"\n' + SPARK, "overlap", "expected one of forbid, allow, replace, queue"),
    ('on_lost = "retry"\n' + SPARK, "on_lost", "expected one of relaunch, hold"),
    ('placement = "any"\n' + SPARK, "placement", "expected one of first, spread"),
    ('tags = ["a b"]\n' + SPARK, "tags", "1 to 64 of the characters"),
    ("priority = 1.5\n" + SPARK, "priority", "expected a whole number"),
    ("priority = 99999999999999999999999\n" + SPARK, "priority", "expected a whole number"),
    ("timeout = 0\n" + SPARK, "timeout", "above zero"),
    ('start_within = "0s"\n' + SPARK, "start_within", "above zero"),
    ('lease = "1m"\n' + SPARK, "lease", "expected a number"),
    ("lease = 10\n" + SPARK, "lease", "cluster.kill_grace (10 s)"),
    ("lease = -1\n" + SPARK, "lease", "more than lease"),
    ("params = 5\n" + SPARK, "params", "expected a table of texts"),
    ('params = { "a b" = "x" }\n' + SPARK, "params", "letters, digits and _"),
    ('params = { run = "x" }\n' + SPARK, "params", "a name that coordd sets itself"),
    (f'params = {{ a = "{"x" * 5000}" }}\n' + SPARK, "params", "at most 4096"),
    ('params = { a = "x\\ny" }\n' + SPARK, "params", "control character"),
    (SPARK + "[retry]\nattempts = 0\n", "retry.attempts", "from 1 to 1000"),
    (SPARK + "[retry]\nrelaunches = -1\n", "retry.relaunches", "from 0 to 1000"),
    (SPARK + "[retry]\nsubmits = 0\n", "retry.submits", "from 1 to 20"),
    (SPARK + '[retry]\nbackoff = "slow"\n', "retry.backoff", "expected one of fixed, linear, exponential"),
    (SPARK + '[retry]\ndelay = "soon"\n', "retry.delay", "expected a duration"),
    (SPARK + "[retry]\njitter = 1.5\n", "retry.jitter", "expected a number from 0 to 1, found 1.5"),
    (SPARK + '[retry]\njitter = "10s"\n', "retry.jitter", "expected a number"),
    (SPARK + "[retry]\nnever_on = [0]\n", "retry.never_on", "exit codes from 1"),
    (SPARK + '[retry]\nnever_on = ["("]\n', "retry.never_on", "expected a regular expression"),
    (SPARK + '[retry]\nnever_on = ["[[a]"]\n', "retry.never_on", "a later Python will read"),
    (SPARK + "[retry]\nattempt = 2\n", "retry.attempt", 'did you mean "attempts"?'),
    ("retry = 5\n" + SPARK, "retry", "expected a table"),
    (SPARK + 'proxy_user = "etl"\nprincipal = "p@R"\n', "spark.proxy_user", "does not go together with principal"),
    (SPARK + 'proxy_user = "etl"\nkeytab = "/k"\n', "spark.proxy_user", "does not go together with principal"),
    # Known, but not in this version.
    ('concurrency = { min = 5, max = 4, by = "load" }\n' + SPARK, "concurrency", "min (5) is above max (4)"),
    ('concurrency = { max = 4, by = "load" }\n' + SPARK, "concurrency", "expected { min, max, by }, found max, by"),
    ('concurrency = { min = 1, max = 4, by = "lod" }\n' + SPARK, "concurrency", 'did you mean "load"?'),
    ('pool = "etl"\n' + SPARK, "pool", 'no pool "etl" in [pools] of coordd.toml; none is known'),
    ("concurrency = -1\n" + SPARK, "concurrency", "expected a whole number from 0"),
    ("concurrency = { max = 1 }\n" + SPARK, "concurrency", "expected a whole number, { per, max } or"),
    ('concurrency = { per = "x", max = 1 }\n' + SPARK, "concurrency", "expected a template that names a parameter"),
    ('concurrency = { per = "{who}", max = 1 }\n' + SPARK, "concurrency", 'there is no param "who"'),
    ('rate = "fast"\n' + SPARK, "rate", 'expected starts per time, such as "200/m"'),
    ('rate = { cluster = "2/w" }\n' + SPARK, "rate", "expected starts per time"),
    ('rate = { node = "2/m" }\n' + SPARK, "rate", "expected cluster, per_node or both, found node"),
    ('queue_max = -1\noverlap = "queue"\n' + SPARK, "queue_max", "expected a whole number from 0"),
    ('queue_keep = "all"\noverlap = "queue"\n' + SPARK, "queue_keep", "expected one of first, last"),
    ("after = 3\n" + SPARK, "after", "expected names of jobs"),
    ('run_as = "root"\n' + SPARK, "run_as", "no job runs as root by run_as"),
    ('run_as = "0"\n' + SPARK, "run_as", "expected the name of a user"),
    ('limits = { ram = "1G" }\n' + SPARK, "limits", 'unknown key "ram"'),
    ('limits = { memory = "1K" }\n' + SPARK, "limits", "memory: expected at least"),
    ("limits = { cpu_weight = 0 }\n" + SPARK, "limits", "cpu_weight: expected a whole number from 1 to 10000"),
    ('limits = { tasks = "a", cpu_weight = 0 }\n' + SPARK, "limits", 'text "a"; cpu_weight: expected a whole number'),
    ('expect_within = "0s"\n' + SPARK, "expect_within", "expected a duration above zero"),
    (SPARK + '[[trigger]]\nfile = "x"\n', "trigger.kind", "expected one of file, http"),
    (SPARK + '[[check]]\nname = "x"\nkind = "y"\n', "check", "check 1: kind: expected one of http"),
    (SPARK + '[[sink]]\nurl = "x"\n', "sink", 'sink 1: url: unknown key "url"'),
]


@pytest.mark.parametrize(("text", "key", "said"), BAD_JOBS)
def test_what_is_wrong_is_named_with_file_and_key_and_disables_that_job_alone(
    tmp_path: Path, text: str, key: str, said: str
) -> None:
    (tmp_path / "good.toml").write_text(SPARK)
    found = load_text(tmp_path, text)
    assert set(found.jobs) == {"good"}
    assert set(found.problems) == {"j"}
    [problem] = found.problems["j"]  # one mistake, one problem
    assert problem.file == str(tmp_path / "j.toml")
    assert problem.key.startswith(key)
    assert said in problem.message
    assert problem.severity == "error"
    assert str(problem).startswith(problem.file)
    assert f": {problem.key}: " in str(problem)


def test_lines_are_named_where_they_are_plain(tmp_path: Path) -> None:
    text = 'description = """\nlease = 1\n"""\n\nlease = 10\n' + SPARK + '\n[retry]\ndelay = "soon"\n'
    lines = {problem.key: problem.line for problem in load_text(tmp_path, text).problems["j"]}
    assert lines == {"lease": 5, "retry.delay": 10}


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    text = 'overlap = "x"\nlease = 1\nafter = []\n[spark]\nargs = 5\n'
    keys = {problem.key for problem in load_text(tmp_path, text).problems["j"]}
    assert keys == {"overlap", "lease", "after", "spark.args", "spark.application"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[spark\n", "it is not TOML"),
        (b"\xff\xfe", "expected UTF-8"),
        (b"#" * (1024 * 1024 + 1), "at most 1048576 bytes"),
        (b"x = " + b"[" * 100_000, "nested too deeply"),
        (b"a." * 50_000 + b"b = 1", "too many parts"),
        (b"\n".join([b"k%d = 1" % n for n in range(50_000)]), "unknown key"),
    ],
)
def test_files_that_are_no_job(tmp_path: Path, content: bytes, said: str) -> None:
    found = load_text(tmp_path, content)
    assert found.jobs == {}
    assert said in str(found.problems["j"][0])


def test_odd_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "directory.toml").mkdir()
    (tmp_path / "dangling.toml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "link.toml").symlink_to(tmp_path / "real.job")
    (tmp_path / "real.job").write_text(SPARK)
    (tmp_path / ".hidden.toml").write_text("x")
    (tmp_path / "note.txt").write_text("x")
    (tmp_path / "two words.toml").write_text(SPARK)
    (tmp_path / f"{'x' * 65}.toml").write_text(SPARK)
    with open(os.fsencode(tmp_path) + b"/caf\xe9.toml", "w") as stream:
        stream.write(SPARK)
    found = load_jobs(str(tmp_path), CONFIG)
    assert set(found.jobs) == {"link"}
    said = {name: problems[0].message for name, problems in found.problems.items()}
    assert "regular file" in said["fifo"]
    assert "directory" in said["directory"]
    assert "No such file" in said["dangling"]  # or it vanished while we read
    assert "a job is named after its file" in said["two words"]
    assert "a job is named after its file" in said["x" * 65]
    assert "a job is named after its file" in said["caf\\udce9"]
    for problems in found.problems.values():
        str(problems[0]).encode()  # can be printed and logged

    def refuse(*_args: object) -> Iterator[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    denied = load_jobs(str(tmp_path), CONFIG)
    assert "Permission denied" in str(denied.problems[""][0])
    assert denied.problems[""][0].severity == "error"


def test_jobs_with_the_same_schedule_have_their_own_jitter_and_their_own_mistakes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(f'schedule = "0 2 * * *"\njitter = "1h"\n{COMMAND}')
        (tmp_path / f"{name}-never.toml").write_text(
            f'schedule = "0 2 1 6 *"\nend = "2026-05-01"\nstart = "2026-04-01"\n{COMMAND}'
        )
        (tmp_path / f"{name}-bad.toml").write_text(f'\nschedule = "0 2 x * *"\n{COMMAND}')
    found = load_jobs(str(tmp_path), CONFIG)
    schedules = [found.jobs[name].schedule for name in ("a", "b")]
    assert [schedule and schedule.offset_s for schedule in schedules] == [jitter_offset(n, 3600.0) for n in ("a", "b")]
    for name in ("a", "b"):
        [never] = found.problems[f"{name}-never"]
        [bad] = found.problems[f"{name}-bad"]
        assert "never fires" in never.message
        assert (bad.file, bad.line) == (f"{tmp_path}/{name}-bad.toml", 2)


def test_a_file_that_comes_in_pieces_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems answer a read with less than there is."""
    file = tmp_path / "a.toml"
    file.write_text('schedule = "0 2 * * *"\n' + COMMAND)
    whole = load_job(str(file), CONFIG)
    assert whole[0] is not None
    read = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: read(fd, min(size, 7)))
    assert load_job(str(file), CONFIG) == whole


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('schedule = "@daily"\nmisfire = "all"\n' + SPARK, "misfire"),
        ('jitter = "5m"\n' + SPARK, "jitter"),
        ('schedule = "@daily"\njitter = "0.5s"\n' + SPARK, "jitter"),
        ("start = 2026-01-01\n" + SPARK, "start"),
    ],
)
def test_a_warning_leaves_the_job_in_place(tmp_path: Path, text: str, key: str) -> None:
    found = load_text(tmp_path, text)
    [problem] = found.problems["j"]
    assert (problem.key, problem.severity) == (key, "warning")
    assert ": warning: " in str(problem)
    assert "j" in found.jobs


def test_hold_goes_with_retries_after_known_exit_codes(tmp_path: Path) -> None:
    found = load_text(tmp_path, 'on_lost = "hold"\n' + SPARK + "[retry]\nattempts = 3\n")
    assert found.problems == {}
    assert found.jobs["j"].policy().on_lost == "hold"
    assert found.jobs["j"].policy().attempts == 3


DEFINING = [
    SPARK + "[retry]\nsubmits = 2\n",
    'schedule = "@daily"\n' + SPARK,
    'timezone = "Europe/Berlin"\n' + SPARK,
    'misfire = "skip"\n' + SPARK,
    'start_within = "2h"\n' + SPARK,
    'overlap = "allow"\n' + SPARK,
    'on_lost = "hold"\n' + SPARK,
    'placement = "first"\n' + SPARK,
    'tags = ["x"]\n' + SPARK,
    "priority = 1\n" + SPARK,
    "timeout = 60\n" + SPARK,
    "lease = 61\n" + SPARK,
    "lease = 60\n" + SPARK,
    'owner = "data"\n' + SPARK,
    'params = { a = "1" }\n' + SPARK,
    SPARK + 'args = ["x"]\n',
    SPARK + 'conf = { "spark.x" = "1" }\n',
    SPARK + "[retry]\nattempts = 2\n",
    SPARK + "[retry]\nnever_on = [2]\n",
    '[command]\nargv = ["/opt/a.py"]\n',
]


def test_the_digest_covers_what_defines_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = [load_text(tmp_path, text).jobs["j"].digest for text in [SPARK, *DEFINING]]
    assert all(digests)
    assert len(set(digests)) == len(digests)
    job = load_text(tmp_path, SPARK).jobs["j"]
    import tzdata  # type: ignore[import-untyped]  # it comes without stubs

    monkeypatch.setattr(tzdata, "IANA_VERSION", "1999a")
    assert load_text(tmp_path, SPARK).jobs["j"].digest != job.digest
    monkeypatch.undo()
    assert digest(job, own_lease=False) == job.digest


def test_the_digest_ignores_how_the_same_is_written(tmp_path: Path) -> None:
    plain = load_text(tmp_path, 'schedule = "0 0 * * *"\n' + SPARK).jobs["j"].digest
    same = [
        '# a comment\nschedule = "@daily"\n' + SPARK,
        'schedule = "0  0 * * *"\noverlap = "forbid"\n' + SPARK,
        'description = "text for people"\nschedule = "0 0 * * *"\n' + SPARK,
        'schedule = "0 0 * * *"\njitter = 0\nstart_within = "60m"\n' + SPARK + "args = []\nconf = {}\n",
    ]
    assert [load_text(tmp_path, text).jobs["j"].digest for text in same] == [plain] * len(same)
    # Nodes may differ in their own settings: only what the file says counts.
    other = load(None, {"COORDD_CLUSTER_LEASE": "90", "COORDD_NODE_NAME": "edge-2"})
    (tmp_path / "j.toml").write_text('schedule = "0 0 * * *"\n' + SPARK)
    job = load_jobs(str(tmp_path), other).jobs["j"]
    assert (job.digest, job.lease_s) == (plain, 90.0)


def test_the_digest_is_the_same_in_every_process_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest is fixed here: a change of it disables pending runs in every cluster that upgrades."""
    import tzdata

    monkeypatch.setattr(tzdata, "IANA_VERSION", "2026a")
    assert load_text(tmp_path, SPARK).jobs["j"].digest == "78c906c09e14f234266d4006c9dc809e"


def test_jobs_of_one_schedule_fire_at_their_own_times(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text('schedule = "@hourly"\njitter = "10m"\n' + SPARK)
    jobs = load_jobs(str(tmp_path), CONFIG).jobs
    fires = [next_fire(job.schedule, 0.0) for job in jobs.values() if job.schedule]
    assert fires == [jitter_offset("a", 600.0), jitter_offset("b", 600.0)]
    assert fires[0] != fires[1]


def test_check_tells_the_configuration_first_and_alone(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.d"
    jobs.mkdir()
    (jobs / "bad.toml").write_text("lease = 1\n" + SPARK)
    (jobs / "good.toml").write_text(SPARK)
    environ = {"COORDD_NODE_JOBS_DIR": str(jobs)}
    path = tmp_path / "coordd.toml"
    path.write_text("[cluster]\nlease = 17\n")
    assert [(p.kind, p.key) for p in check(str(path), environ)] == [("config", "cluster.lease")]
    path.write_text("")
    assert [(p.kind, p.key) for p in check(str(path), environ)] == [("job", "lease")]
    (jobs / "bad.toml").unlink()
    assert check(str(path), environ) == []


def test_a_problem_reads_as_one_line() -> None:
    assert str(Problem("/f", "k", 3, "m")) == "/f:3: k: m"
    assert str(Problem("/f", "", None, "m", severity="warning")) == "/f: warning: m"


def test_when_somebody_is_to_be_warned_is_no_part_of_what_is_launched(tmp_path: Path) -> None:
    plain, expected = (load_text(tmp_path, text + SPARK).jobs["j"] for text in ("", 'expect_within = "1d"\n'))
    assert (plain.expect_within_s, expected.expect_within_s) == (0.0, 86400.0)
    assert plain.digest == expected.digest


MEGABYTE = 1024 * 1024
MANY_MISTAKES = {
    "placeholders of one name": '[command]\nargv = ["/bin/true", "' + "{x}" * 21_000 + '"]\n',
    "a placeholder a line": COMMAND
    + "[params]\n"
    + "".join([f"p{n} = 1\n" for n in range(900)])
    + "[command.env]\n"
    + "".join([f'V{n} = "' + "".join([f"{{p{n}x{i}}}" for i in range(100)]) + '"\n' for n in range(900)]),
    "unknown keys": COMMAND + "".join([f"key{n} = 1\n" for n in range(70_000)]),
    "empty blackouts": "schedule = '@daily'\n" + "[[blackout]]\n" * 80_000 + COMMAND,
    "blackouts that leave nothing": "schedule = '@daily'\n"
    + "[[blackout]]\ncron = '0 0 * * *'\nduration = '1h'\n" * 100
    + COMMAND,
}


@pytest.mark.timeout(60)  # generous: they take a second; quadratic time would not end
@pytest.mark.parametrize("text", MANY_MISTAKES.values(), ids=MANY_MISTAKES.keys())
def test_a_large_file_of_mistakes_is_read_once_and_few_of_them_are_named(tmp_path: Path, text: str) -> None:
    assert len(text) < MEGABYTE, "or it is not read at all"
    found = load_text(tmp_path, text)
    assert found.jobs == {}
    assert 1 <= len(found.problems["j"]) <= 101


def test_places_of_keys_quoted_dotted_and_in_tables() -> None:
    places = Places('a = """\nb = 1\n"""\n"c d" = 2\ne.f = 3\n[t]\n\'g\' = 4\na = 5\n[[u.v]]\nh=1\n[[u.v]]\nh=2\n')
    wanted = {("", "a"): 1, ("", "c d"): 4, ("", "e"): 5, ("", "t"): 6, ("t", "g"): 7, ("t", "a"): 8, ("u", "v"): 9}
    assert {key: places.line_of(*key) for key in wanted} == wanted
    assert (places.line_of("u.v", "h"), places.line_of("", "b")) == (10, None)


@pytest.mark.parametrize(
    ("words", "place", "what"),
    [
        (["--db-password=hunter2"], 1, "the value of db-password"),
        (["--user", "a", "--token", "hunter2"], 4, "the value of --token"),
        (["password=hunter2"], 1, "the value of password"),
        (["AWS_SECRET_ACCESS_KEY=hunter2"], 1, "the value of AWS_SECRET_ACCESS_KEY"),
        (["-apiKey", "hunter2"], 2, "the value of -apiKey"),
        (["--id", "AKIA" + "HUNTER2HUNTER2HU"], 2, "a key or a token"),
        (["jdbc:mysql://ann:hunter2@db/x"], 1, "the password of a URL"),
    ],
)
def test_a_secret_on_a_command_line_draws_a_warning_that_does_not_show_it(
    tmp_path: Path, words: list[str], place: int, what: str
) -> None:
    for text, key, at in (
        (SPARK + f"args = {json.dumps(words)}\n", "spark.args", place),
        (f"[command]\nargv = {json.dumps(['/bin/true', *words])}\n", "command.argv", place + 1),
    ):
        found = load_text(tmp_path, text)
        assert "j" in found.jobs, "a warning disables nothing"
        (problem,) = found.problems["j"]
        assert (problem.severity, problem.key) == ("warning", key)
        assert problem.line == (3 if key == "spark.args" else 2)
        assert f"item {at} looks like {what}" in problem.message
        assert "env_file" in problem.message
        assert "conf" in problem.message
        assert "hunter2" not in str(problem).lower()


@pytest.mark.parametrize(
    "words",
    [
        ["--token", "{token}"],
        ["--token={token}"],
        ["--password-file", "/run/secrets/x"],
        ["--password", "/run/x"],
        ["--partition-key", "id"],
        ["sort_key=day"],
        ["--token", "--verbose"],
        ["hdfs://nn:8020/a@b"],
        ["monkey=1"],
    ],
)
def test_what_is_no_secret_draws_none(tmp_path: Path, words: list[str]) -> None:
    assert load_text(tmp_path, SPARK + f"args = {json.dumps(words)}\n").problems == {}


def test_a_held_job_keeps_its_schedule_apart(tmp_path: Path) -> None:
    """No code that launches reads the held schedule; and the digest differs, so that a release counts as a change."""
    schedule = 'schedule = "0 2 * * *"\n'
    held = load_text(tmp_path, "enabled = false\n" + schedule + COMMAND).jobs["j"]
    released = load_text(tmp_path, "enabled = true\n" + schedule + COMMAND).jobs["j"]
    assert (held.enabled, held.schedule, held.schedule_digest) == (False, None, "")
    assert released.held is None
    assert held.held == released.schedule
    assert held.digest != released.digest == load_text(tmp_path, schedule + COMMAND).jobs["j"].digest
    assert "enabled" in str(load_text(tmp_path, 'enabled = "no"\n' + COMMAND).problems["j"][0])

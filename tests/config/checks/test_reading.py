"""What ``[[check]]`` may say, and how mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordd.config.jobfile import load_job
from coordd.config.settings import read_config
from coordd.core.checks.check import Check, Use

COMMAND = '[command]\nargv = ["/bin/true"]\n'
NODE = '[node]\nname = "n1"\n'


def of_toml(tmp_path: Path, text: str) -> tuple[dict[str, Check], list[str]]:
    path = tmp_path / "coordd.toml"
    path.write_text(NODE + text)
    config, problems = read_config(str(path), {})
    return config.checks if config else {}, [str(problem).removeprefix(f"{path}:") for problem in problems]


def test_every_key_is_read(tmp_path: Path) -> None:
    checks, problems = of_toml(
        tmp_path,
        '[[check]]\nname = "api"\nkind = "http"\nurl = "https://data.example/ready"\nevery = "1m"\ntimeout = 2\n'
        'fail_after = 1\npass_after = 4\nscope = "tag:edge"\nthen = "abstain"\ndegraded_at = 0.5\nunhealthy_at = 1.5\n'
        '[[check]]\nname = "room"\nkind = "disk"\npath = "/data"\n'
        '[[check]]\nname = "m"\nkind = "spark_master"\nurl = ["http://m1:8080", "http://m2:8080"]\nscope = "cluster"\n',
    )
    assert problems == []
    assert checks == {
        "api": Check(
            name="api", kind="http", url="https://data.example/ready", every_s=60.0, timeout_s=2.0, fail_after=1,
            pass_after=4, scope="tag:edge", then="abstain", degraded_at=0.5, unhealthy_at=1.5,
        ),
        "room": Check(name="room", kind="disk", path="/data"),
        "m": Check(name="m", kind="spark_master", url="http://m1:8080,http://m2:8080", scope="cluster"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("check = 3\n", "check"),
        ('[[check]]\nname = "x"\n', "check 1: kind: expected it, found nothing"),
        ('[[check]]\nkind = "disk"\npath = "/"\n', "check 1: name: expected it, found nothing"),
        ('[[check]]\nname = "a/b"\nkind = "disk"\npath = "/"\n', "check 1: name: expected 1 to 64"),
        ('[[check]]\nname = "x"\nkind = "dsik"\npath = "/"\n', "check 1: kind: expected one of http, tcp"),
        ('[[check]]\nname = "x"\nkind = "disk"\n', 'check 1: path: a check of kind "disk" needs it'),
        ('[[check]]\nname = "x"\nkind = "load"\npath = "/"\n', 'check 1: path: a check of kind "load" has no path'),
        ('[[check]]\nname = "x"\nkind = "tcp"\naddress = "host"\n', "check 1: address: expected HOST:PORT"),
        ('[[check]]\nname = "x"\nkind = "tcp"\naddress = "host:99999"\n', "check 1: address: expected HOST:PORT"),
        ('[[check]]\nname = "x"\nkind = "http"\nurl = "ftp://a/"\n', "check 1: url: expected an address with http or"),
        ('[[check]]\nname = "x"\nkind = "http"\nurl = "http://[x/"\n', "check 1: url: expected an address such as"),
        ('[[check]]\nname = "x"\nkind = "redis"\nurl = "redis://u:geheim@h:1"\n', "address without a password"),
        ('[[check]]\nname = "x"\nkind = "command"\nargv = ["check_disk"]\n', "expected a program with its absolute"),
        ('[[check]]\nname = "x"\nkind = "load"\nevery = "0.1s"\n', "check 1: every: expected 1 s to 86400 s"),
        ('[[check]]\nname = "x"\nkind = "load"\nscope = "everywhere"\n', 'check 1: scope: expected "node", "cluster"'),
        ('[[check]]\nname = "x"\nkind = "load"\nscope = "cluster"\n', "looks at its own machine"),
        ('[[check]]\nname = "x"\nkind = "report"\nscope = "cluster"\nevery = 2\n', "expected at least 5 s"),
        (
            '[[check]]\nname = "x"\nkind = "report"\nscope = "cluster"\nthen = "suspend"\n',
            "only a job can be suspended",
        ),
        ('[[check]]\nname = "x"\nkind = "load"\ndegraded_at = 3\nunhealthy_at = 2\n', "expected a limit below"),
        ('[[check]]\nname = "x"\nkind = "memory"\ndegraded_at = 3\nunhealthy_at = 20\n', "expected a limit above"),
        ('[[check]]\nname = "x"\nkind = "report"\ndegraded_at = 3\n', "measures nothing"),
        ('[[check]]\nname = "x"\nkind = "load"\n' * 2, 'check 2: name: there is another check "x"'),
        ('[[check]]\nname = "x"\nkind = "load"\nthreshold = 1\n', 'unknown key "threshold"'),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, problem: str) -> None:
    checks, problems = of_toml(tmp_path, text)
    assert checks == {}
    assert any(problem in told for told in problems), problems
    assert "geheim" not in str(problems)


def test_a_job_has_checks_of_its_own_and_names_others(tmp_path: Path) -> None:
    config, _ = read_config(None, {"COORDD_NODE_NAME": "n1"})
    assert config is not None
    known = {"room": Check(name="room", kind="load"), "shared": Check(name="shared", kind="report", scope="cluster")}
    config = type(config)(**{**{f: getattr(config, f) for f in config.__struct_fields__}, "checks": known})
    path = tmp_path / "sales.toml"

    def read(text: str) -> tuple[object, object, list[str], str]:
        path.write_text(text + COMMAND)
        job, problems = load_job(str(path), config)
        told = [str(problem) for problem in problems]
        return (job.checks, job.uses, told, job.digest) if job else (None, None, told, "")

    plain = read("")[3]
    checks, used, problems, digest = read('check = ["room", { name = "shared", then = "suspend" }]\n')
    assert (checks, used, problems) == ((), (Use("room"), Use("shared", "suspend")), [])
    assert digest != plain, "another definition: nodes with the old one do not look at the check"
    path.write_text(COMMAND + '[[check]]\nname = "api"\nkind = "tcp"\naddress = "db:1"\nthen = "abstain"\n')
    job, _ = load_job(str(path), config)
    assert job is not None
    assert [one.key for one in job.checks] == ["sales/api"]
    for text, problem in (
        ('check = ["romo"]\n', 'there is no check "romo" in coordd.toml; did you mean "room"'),
        ('check = "room"\n', "expected a list"),
        ('check = [{ name = "room", then = "suspend" }]\n', 'the check needs scope = "cluster" or "tag:T"'),
        ('check = [{ name = "room", then = "panic" }]\n', "expected one of warn, abstain, suspend"),
        ('check = [{ name = "x", kind = "load", then = "suspend" }]\n', 'the check needs scope = "cluster"'),
        ("check = [3]\n", "expected a list of tables"),
    ):
        told = read(text)[2]
        assert any(problem in one for one in told), (text, told)

"""Journals that prove something, and journals in which something is wrong."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from coordd.cli.coordd import program
from coordd.core.wire.chain import Head, Line, chained, link
from coordd.core.wire.journal_line import encode_line
from coordd.history import transforms
from coordd.history.audit import audit
from coordd.history.proof.judge import Judge
from coordd.history.proof.verify import Proof, verify
from history.conftest import Frame, at_rest
from history.journals import busy_day
from history.test_audit import HISTORIES, Told

SEVERITIES = {"violation": "breach", "notice": "notice"}


def journal(directory: Path, records: list[dict[str, Any]], name: str = "00000001.jsonl") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(b"".join(encode_line(record) for record in records))
    return directory / name


def found(proof: Proof) -> list[tuple[str, str, str]]:
    return sorted((one.severity, one.kind, one.run) for one in proof.findings)


@pytest.mark.parametrize("name", HISTORIES)
def test_it_finds_what_the_audit_on_spark_finds(name: str, tmp_path: Path) -> None:
    told, expected = HISTORIES[name]
    journal(tmp_path, told.records("job"))

    wanted = [
        (SEVERITIES[severity], kind, f"job{run}")
        for severity, kind, run, _ in expected
        if kind != "succeeded_twice"  # a success that could not be reported breaks no promise
    ]
    assert found(verify([str(tmp_path)])) == sorted(wanted)


@pytest.mark.parametrize("seed", range(5))
def test_a_day_of_a_cluster_is_clean_in_any_order_and_twice(seed: int, tmp_path: Path) -> None:
    day = busy_day(seed)
    day.write(str(tmp_path / "as written"))
    records = day.records() * 2
    random.Random(seed).shuffle(records)
    journal(tmp_path / "shuffled", records)

    for place in ("as written", "shuffled"):
        proof = verify([str(tmp_path / place)])
        assert proof.breaches == 0, proof.findings
        assert {one.kind for one in proof.findings} <= {"end_unknown"}, "owners that died silently"
        assert proof.runs == 30


def test_a_breach_names_every_line_that_shows_it(tmp_path: Path) -> None:
    told, _ = HISTORIES["launched twice, two tokens"]
    records = told.records("job")
    first = journal(tmp_path / "a", [{"type": "worker-online", "hostname": "a", "timestamp": 1.0}, *records[:3]])
    second = journal(tmp_path / "b", records[3:], "current.jsonl")

    (breach,) = verify([str(tmp_path)]).findings
    assert breach.kind == "launched_twice"
    assert breach.lines == ((str(first), 3), (str(second), 2))
    assert breach.as_dict()["file"] == str(second)


def test_one_grant_that_two_nodes_have_started_is_a_breach(tmp_path: Path) -> None:
    told, _ = HISTORIES["nothing to find"]
    records = told.records("job")
    journal(tmp_path, [*records, {**records[1], "hostname": "b"}])

    assert found(verify([str(tmp_path)])) == [("breach", "launched_twice", "job@1")]


def test_an_end_of_another_grant_ends_nothing(tmp_path: Path) -> None:
    told = Told().attempt(100, 300, "a", 0, 10).add("failed", 110, "c", 0, 10, nonce="another", exit_code=1)
    journal(tmp_path, told.attempt(200, 400, "b", 1, 11).records("job"))

    assert ("breach", "overlap", "job@1") in found(verify([str(tmp_path)]))


# ---- chains


def audited(count: int) -> tuple[list[dict[str, Any]], Head]:
    records: list[dict[str, Any]] = []
    head: Head | None = None
    for number in range(count):
        made = chained({"type": "control", "timestamp": 100.0 + number, "hostname": "a", "method": "run.trigger"}, head)
        head = Head(made["n"], link(encode_line(made)), made["timestamp"])
        records.append(made)
    assert head is not None
    return records, head


def node(path: Path, records: list[dict[str, Any]], head: Head) -> str:
    journal(path / "journal", records)
    (path / "audit.json").write_text(json.dumps(head._asdict()))
    return str(path)


def test_a_whole_chain_is_counted(tmp_path: Path) -> None:
    proof = verify([node(tmp_path, *audited(5))])

    assert (proof.chains, proof.records, proof.findings) == (1, 5, [])


def test_each_node_has_a_chain_of_its_own(tmp_path: Path) -> None:
    places = [node(tmp_path / name, *audited(count)) for name, count in (("a", 5), ("b", 3))]

    for order in (places, places[::-1], [str(tmp_path)]):
        proof = verify(order)
        assert (proof.chains, proof.records, proof.findings) == (2, 8, [])


def test_a_record_that_was_removed_edited_or_cut_off_is_a_breach(tmp_path: Path) -> None:
    records, head = audited(5)
    edited = {**records[2], "method": "run.cancel"}
    for name, others in {
        "removed": [*records[:2], *records[3:]],
        "edited": [*records[:2], edited, *records[3:]],
        "cut off": records[:4],
        "moved": [records[0], records[2], records[1], *records[3:]],
    }.items():
        proof = verify([node(tmp_path / name, others, head)])
        assert ("breach", "chain", "") in found(proof), name


def test_a_copy_without_its_head_is_a_gap_and_no_breach(tmp_path: Path) -> None:
    journal(tmp_path, audited(5)[0], "00000001-0123456789ab.jsonl")

    assert found(verify([str(tmp_path)])) == [("notice", "chain", "")]


def control(journal_of: Path, records: list[dict[str, Any]]) -> None:
    """What a live node adds to its open segment."""
    with (journal_of / "current.jsonl").open("ab") as file:
        file.write(b"".join(encode_line(record) for record in records))


def test_a_node_that_writes_meanwhile_is_no_breach_and_loses_no_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing and the reading it closes its open segment twice, and writes on while the last is read."""
    records, _ = audited(9)
    heads = [Head(record["n"], link(encode_line(record)), record["timestamp"]) for record in records]
    place = Path(node(tmp_path, records[:2], heads[3]))
    written = place / "journal"
    control(written, records[2:4])
    taken: list[int] = []

    def take(judge: Judge, line: Line, *, last: bool = False) -> None:
        taken.append(line.number)
        if len(taken) == 1:
            (written / "current.jsonl").rename(written / "00000002.jsonl")
            control(written, records[4:6])
            (written / "current.jsonl").rename(written / "00000003.jsonl")
            control(written, records[6:8])
            (place / "audit.json").write_text(json.dumps(heads[7]._asdict()))
        real(judge, line, last=last)

    real = Judge.take
    monkeypatch.setattr(Judge, "take", take)
    proof = verify([str(place)])
    assert (proof.findings, proof.records) == ([], 6)


def test_records_that_come_while_the_open_segment_is_read_are_no_breach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, _ = audited(9)
    heads = [Head(record["n"], link(encode_line(record)), record["timestamp"]) for record in records]
    place = Path(node(tmp_path, records[:2], heads[1]))
    real = Judge.take

    def take(judge: Judge, line: Line, *, last: bool = False) -> None:
        real(judge, line, last=last)
        control(place / "journal", records[2:])
        (place / "audit.json").write_text(json.dumps(heads[8]._asdict()))

    monkeypatch.setattr(Judge, "take", take)
    proof = verify([str(place)])
    assert (proof.findings, proof.records) == ([], 2)


def test_a_node_that_was_installed_anew_under_its_name_begins_a_new_chain_in_the_sink(tmp_path: Path) -> None:
    for life, count in (("aaaaaa", 6), ("bbbbbb", 5)):
        records = [{**record, "life": life} for record in audited(count)[0]]
        head: Head | None = None
        for index, record in enumerate(records):
            records[index] = chained({k: v for k, v in record.items() if k not in ("n", "prev")}, head)
            head = Head(index + 1, link(encode_line(records[index])), 1.0)
        journal(tmp_path, records[:3], f"00000001-{life}.jsonl")
        journal(tmp_path, records[3:], f"00000002-{life}.jsonl")

    proof = verify([str(tmp_path)])
    assert (proof.breaches, proof.chains, proof.records) == (0, 2, 11)
    assert [one.lines for one in proof.findings if "a new chain begins" in one.detail] == [
        ((str(tmp_path / "00000001-bbbbbb.jsonl"), 1),)
    ]

    path = tmp_path / "00000002-aaaaaa.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    assert ("breach", "chain", "") in found(verify([str(tmp_path)])), "a record of the first life was removed"


def test_in_a_nodes_own_journal_no_new_chain_may_begin(tmp_path: Path) -> None:
    records, head = audited(3)
    place = node(tmp_path, audited(5)[0] + records, head)

    assert ("breach", "chain", "") in found(verify([place]))


# ---- damage


def test_segments_that_somebody_compressed_are_read_as_the_spark_job_reads_them(tmp_path: Path) -> None:
    told, _ = HISTORIES["launched twice, two tokens"]
    records = told.records("job")
    journal(tmp_path, records[:3])
    path = journal(tmp_path, records[3:], "00000002-0123456789ab.jsonl")
    (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    both = found(verify([str(tmp_path)]))
    path.unlink()

    proof = verify([str(tmp_path)])
    assert found(proof) == both == [("breach", "launched_twice", "job@1")]
    assert proof.findings[0].lines[-1] == (f"{path}.gz", 2)
    assert proof.lines == len(records)

    whole = (tmp_path / f"{path.name}.gz").read_bytes()
    for spoilt in (whole[:-9], b"not gzip", whole[:20] + b"\xff\xff" + whole[22:]):
        (tmp_path / f"{path.name}.gz").write_bytes(spoilt)
        result = run(str(tmp_path))
        assert result.exit_code == 65
        assert f"{path.name}.gz: " in result.output

    (tmp_path / f"{path.name}.gz").unlink()
    (tmp_path / "current.jsonl.gz").write_bytes(whole)
    result = run(str(tmp_path))
    assert result.exit_code == 65
    assert "current.jsonl.gz: expected a closed segment's name" in result.output


def test_a_link_to_a_segment_that_is_gone_is_named(tmp_path: Path) -> None:
    journal(tmp_path, HISTORIES["nothing to find"][0].records("job"))
    (tmp_path / "00000002.jsonl").symlink_to(tmp_path / "nowhere")

    result = run(str(tmp_path))
    assert result.exit_code == 65
    assert "00000002.jsonl: No such file" in result.output


def test_a_line_that_was_altered_is_a_breach_and_one_that_was_cut_is_a_gap(tmp_path: Path) -> None:
    told, _ = HISTORIES["nothing to find"]
    path = journal(tmp_path, told.records("job"))
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)

    path.write_bytes(whole.replace(b'"hostname":"a"', b'"hostname":"b"', 1))
    (altered,) = verify([str(tmp_path)]).findings
    assert (altered.kind, altered.severity, altered.lines) == ("altered", "breach", ((str(path), 1),))

    for torn in (lines[0][:-20] + lines[1] + lines[2], lines[0] + lines[1] + lines[2][:-15], b"\x00\xff\n" + whole):
        path.write_bytes(torn)
        assert {(one.kind, one.severity) for one in verify([str(tmp_path)]).findings} == {("damaged", "notice")}


def test_the_end_of_an_open_segment_may_be_half_written(tmp_path: Path) -> None:
    told, _ = HISTORIES["nothing to find"]
    path = journal(tmp_path, told.records("job"), "current.jsonl")
    path.write_bytes(path.read_bytes() + b'{"type":"task-sta')

    assert verify([str(tmp_path)]).findings == []


def test_segments_and_attempts_that_are_not_here_are_named(tmp_path: Path) -> None:
    told, _ = HISTORIES["a lower token for a later attempt"]
    journal(tmp_path, [record for record in told.records("job") if record["attempt"] == 1])
    for number in (3, 7):
        journal(tmp_path, [{"type": "worker-online", "timestamp": 1.0}], f"{number:08d}.jsonl")

    proof = verify([str(tmp_path)])
    assert found(proof) == [("notice", "segment_missing", ""), ("notice", "unseen", "job@1")]
    assert proof.findings[-1].detail == "not here: segments 2, 4 to 6"
    assert "2 notices name gaps in the proof" in proof.sentences()[-1]


# ---- runs that begin with attempt 1

BEGIN = "2026-09-21T00:00:00Z"
PLAN = f"job abc: {BEGIN} to 2026-09-22T00:00:00Z, 24 runs, oldest first, at most 1, redo "


def opened(directory: Path, method: str, subject: str, *more: dict[str, Any], at: float = 95.0) -> list[str]:
    """The findings about a run with attempts 1 and 2, after an act of a person."""
    attempts = Told().attempt(100, 110, "a", 1, 10).attempt(120, 130, "a", 2, 11).records("job")
    act = {"type": "control", "timestamp": at, "hostname": "b", "method": method, "subject": subject, "outcome": "done"}
    records = [act, *attempts, *more]
    for record in records[1:]:
        record["run"] = f"job@{BEGIN}"
    journal(directory, records)
    proof = verify([str(directory)])
    assert {one.kind for one in proof.findings} <= {"unseen"}
    return [one.detail for one in proof.findings]


MISSING = "no journal here has 1 of the attempts 0 to 2"


def test_a_run_that_a_backfill_opened_has_no_attempt_0(tmp_path: Path) -> None:
    assert opened(tmp_path / "before", "job.backfill", PLAN + "none") == []
    assert opened(tmp_path / "at once", "job.backfill", PLAN + "none", at=100.1) == []


def test_a_fire_time_that_was_rejected_and_filled_in_later_has_no_gap(tmp_path: Path) -> None:
    rejected = {"type": "task-rejected", "timestamp": 50.0, "hostname": "b", "attempt": 0, "reason": "overlap"}
    assert opened(tmp_path, "job.backfill", PLAN + "failed", rejected) == []


@pytest.mark.parametrize(
    ("method", "subject", "at"),
    [
        ("job.backfill", PLAN.replace("job ", "job2 ") + "none", 95.0),
        ("job.backfill", f"job abc: 2026-09-20T00:00:00Z to {BEGIN}, 24 runs, oldest first, redo none", 95.0),
        ("job.backfill", "job abc: cancelled", 95.0),
        ("job.backfill", PLAN + "none", 160.0),
        ("job.suspend", PLAN + "none", 95.0),
    ],
)
def test_an_attempt_0_that_is_not_here_is_named(method: str, subject: str, at: float, tmp_path: Path) -> None:
    assert opened(tmp_path, method, subject, at=at) == [MISSING]


@pytest.mark.parametrize(
    ("method", "subject"),
    [
        ("job.backfill", PLAN + "all"),
        ("job.backfill", PLAN + "failed"),
        ("run.rerun", f"parent@{BEGIN}/0, then job@{BEGIN}"),
    ],
)
def test_an_attempt_0_that_may_never_have_been_is_named_as_that(method: str, subject: str, tmp_path: Path) -> None:
    """Such an act runs launched runs once more, and opens those that were never launched."""
    (detail,) = opened(tmp_path, method, subject)
    assert detail.startswith(f"{MISSING}; attempt 0 may never have been: ")


@pytest.mark.parametrize(("succession", "expected"), [(["a.1", "b.7"], []), (["a.1", "c.1"], [MISSING])])
def test_an_attempt_0_that_a_node_without_a_journal_here_may_have_had_is_named(
    succession: list[str], expected: list[str], tmp_path: Path
) -> None:
    """Also of a run that was suspended is an election held: it does not show that attempt 0 was granted."""
    elected = {"type": "election-decided", "timestamp": 60.0, "hostname": "b", "attempt": 0, "succession": succession}
    assert opened(tmp_path, "job.backfill", PLAN + "none", elected) == expected


def test_an_attempt_0_of_which_a_line_tells_is_named_although_a_backfill_may_have_opened_the_run(
    tmp_path: Path,
) -> None:
    lost = {"type": "task-retried", "timestamp": 90.0, "hostname": "b", "attempt": 0, "reason": "its lease lapsed"}
    for redo in ("none", "all"):
        assert opened(tmp_path / redo, "job.backfill", PLAN + redo, lost) == [MISSING]


def test_another_attempt_of_a_backfilled_run_is_counted_from_1(tmp_path: Path) -> None:
    told = Told().attempt(100, 110, "a", 1, 10).attempt(140, 150, "a", 4, 12).records("job")
    act = {"type": "control", "timestamp": 95.0, "hostname": "b", "method": "job.backfill", "subject": PLAN + "none"}
    journal(tmp_path, [act, *[{**record, "run": f"job@{BEGIN}"} for record in told]])

    (finding,) = verify([str(tmp_path)]).findings
    assert finding.detail == "no journal here has 2 of the attempts 1 to 4"


STRANGE: list[Any] = [None, True, -1, 1.5, "x", [], {}, 10**30, 10**400, ""]
FIELDS = ("run", "attempt", "token", "nonce", "name", "hostname", "timestamp", "type", "runtime")


@pytest.mark.parametrize("field", FIELDS)
def test_no_value_of_a_field_ends_it(field: str, tmp_path: Path) -> None:
    told, _ = HISTORIES["launched twice, two tokens"]
    records = [{**record, field: value} for value in STRANGE for record in told.records("job")]
    journal(tmp_path, [*records, {"type": "control", "timestamp": 1.0, "n": True}])

    assert verify([str(tmp_path)]).lines == len(records) + 1


# ---- the command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program, ["history", "verify", *arguments])


def test_the_command_says_what_is_proven(tmp_path: Path) -> None:
    busy_day(1).write(str(tmp_path))

    result = run(str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "no run was launched twice, no attempts overlapped, every chain is whole" in result.output
    assert "3 journals of 3 nodes" in result.output


def test_the_command_lists_breaches_with_file_and_line(tmp_path: Path) -> None:
    told, _ = HISTORIES["alive together"]
    path = journal(tmp_path, told.records("job"))

    result = run(str(tmp_path))
    assert result.exit_code == 1
    assert "breach overlap: job@1: attempt 1 " in result.output
    assert f"{path}:" in result.output

    (line,) = [json.loads(line) for line in run(str(tmp_path), "-o", "jsonl").stdout.splitlines()]
    assert {"kind", "run", "file", "line", "detail"} <= line.keys()
    assert (line["kind"], line["file"]) == ("overlap", str(path))
    assert json.loads(run(str(tmp_path), "-o", "json").stdout)["breaches"] == 1


def test_directories_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for place in (tmp_path / "absent", tmp_path):
        result = run(str(place))
        assert result.exit_code == 65
        assert str(place) in result.output


@pytest.mark.skipif(os.getuid() != 0, reason="needs /proc/1/mem, which opens and refuses to be read")
def test_a_segment_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "00000001.jsonl").symlink_to("/proc/1/mem")

    result = run(str(tmp_path))
    assert result.exit_code == 65
    assert "00000001.jsonl" in result.output


# ---- against the audit on Spark


def any_history(rng: random.Random) -> Told:
    """Attempts of one or two runs, with every fault at once."""
    told, token = Told(), 1000
    for run in ("@1", "@2")[: rng.randrange(1, 3)]:
        begin = 100.0 + rng.randrange(40)
        timed = rng.random() < 0.5  # tokens are the ledger's time, and the nodes' clocks are more or less right
        for attempt in range(rng.randrange(1, 4)):
            token += rng.choice((1, 1, 1, 0, -1))
            if timed:
                token = int((begin + rng.choice((0, 1, 4.5, -4.5, 40))) * 1e6)
            host = rng.choice("ab")
            end = None if rng.random() < 0.2 else begin + rng.choice((1, 10, 60))
            mine = f"n{token}.{attempt}"
            of = attempt - (rng.random() < 0.1 and attempt > 0)  # sometimes the last one again
            told.attempt(begin, end, host, of, token, run=run, nonce=mine)
            if rng.random() < 0.1:  # the same grant once more, on this node or another one
                told.add("started", begin + rng.choice((0, 0.3, 70)), rng.choice("abc"), of, token, run=run, nonce=mine)
            if rng.random() < 0.2:
                word, nonce = rng.choice(("failed", "retried", "revoked")), rng.choice((mine, "", "other"))
                told.add(word, begin + rng.choice((0.3, 5, 30)), "c", attempt, token, run=run, nonce=nonce)
            begin += rng.choice((0.2, 5, 20, 70))
    return told


def test_it_agrees_with_the_audit_on_spark_about_any_history(lines: Frame, tmp_path: Path) -> None:
    rng = random.Random(14)
    records = [record for number in range(400) for record in any_history(rng).records(f"job{number}")]
    journal(tmp_path, records)
    events = at_rest(transforms.events(transforms.checked(lines([encode_line(record) for record in records]))))
    granted = at_rest(transforms.granted(events))
    rows = audit(transforms.grants(granted), transforms.attempts(granted)).collect()
    kinds = {"launched_twice", "overlap", "end_unknown", "token_repeated", "token_backwards"}

    def of(severity: str, kind: str, run: str) -> tuple[str, str, str]:
        # A token of two grants: which of their runs is named is not a rule.
        return severity, kind, run.partition("@")[0] if kind == "token_repeated" else run

    on_spark = {of(SEVERITIES[row.severity], row.kind, row.run) for row in rows if row.kind in kinds}
    ours = {of(*one) for one in found(verify([str(tmp_path)])) if one[1] in kinds}

    assert (sorted(ours - on_spark), sorted(on_spark - ours)) == ([], [])
    assert {kind for _, kind, _ in ours} == kinds
    assert {severity for severity, kind, _ in ours if kind == "token_backwards"} == {"breach", "notice"}

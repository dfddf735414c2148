"""The messages that this node could not use: bounded, and complete enough to find their sender."""

from __future__ import annotations

from structlog.testing import capture_logs

from coordd.services.metrics.unread import HEAD_BYTES, KEPT_MAX, Unread


def test_the_newest_are_kept_and_dumped_with_their_bytes() -> None:
    unread = Unread("message.refused")
    assert unread.told() == ""
    with capture_logs() as told:
        for number in range(1, 101):
            unread.add(f"reason {number}", bytes([number]) * 1000, number)
    assert [record["count"] for record in told] == [1, 2, 4, 8, 16, 32, 64], "a flood does not fill the log"
    assert [one.reason for one in unread.newest] == [f"reason {number}" for number in range(101 - KEPT_MAX, 101)]
    assert "1000 bytes: reason 100" in unread.told()

    with capture_logs() as told:
        unread.dump()
    assert [(record["event"], record["was"]) for record in told] == [("message.kept", "message.refused")] * KEPT_MAX
    assert told[-1]["head"] == "64" * HEAD_BYTES
    assert "64646464" not in unread.told(), "viewers may read it; the bytes may name arguments"

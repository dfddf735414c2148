"""Why the ledger has no run of an id, in a sentence, from what is known of its time. Pure."""

from __future__ import annotations

from typing import NamedTuple

from coordd.core.jobs.job import Job, iso
from coordd.core.ledger.fires import COALESCED
from coordd.services.views.fires import BLACKOUT, HELD, IS_HELD, Fire
from coordd.services.waiting.due import given_up
from coordd.services.waiting.sentences import when


class Absent(NamedTuple):
    """Known facts about a run without a row in the ledger. Unix seconds; None: not a time, or not known."""

    known: bool  # this node has the job
    fire_at: float | None = None  # None: it was triggered
    is_fire_time: bool = False  # a fire time of the present schedule
    following: float | None = None  # the schedule's next time after it
    settled_to: float | None = None  # the ledger launches no fire time of the job up to this one
    passed_over: str = ""  # skipped | coalesced, if this node has seen it
    misfire: str = ""
    now: float = 0.0
    blacked_out: bool = False  # a fire time of the schedule, if it had no blackouts
    fire: Fire | None = None  # what the ledger has decided about it
    awaits: str = ""  # of a child: which parents it waits for, or why they have not opened it, as a sentence
    waits: bool = False  # it does wait for them
    own: bool = True  # its job has a schedule
    child: bool = False  # its job runs after others
    held: bool = False  # its job is held
    misnamed: str = ""  # the id that was expected, if this one does not name a run
    group: str = ""  # of a group: how its members are, as a sentence
    group_ended: bool = False
    heard: str = ""  # how it ended, as nodes have said: while the ledger does not answer
    holder: str = ""  # who has it, as this node knows: likewise
    given_up: str = ""  # until when it may be launched, as a sentence: it is due
    accepted: bool = False  # triggered here, and kept on this node's disk until the ledger has it


def told_of(about: Absent) -> str:
    """Why there is no row, as far as known: what is decided comes first, then the schedule, then its parents."""
    if about.misnamed:
        return f"{about.misnamed}."
    if about.fire is not None and about.fire.decision not in ("", BLACKOUT, HELD):
        return _decided(about.fire)
    if not about.known and about.fire_at is not None:
        return "it was never due, or it is older than the history kept; this node does not know its job's schedule."
    if about.fire_at is not None and (about.own or not about.child):
        said = _not_due(about)
        if said:
            return said
    if about.held:
        was = "it was a fire time of the job's schedule, but " if about.own and about.fire_at is not None else ""
        return f"{was}{IS_HELD}."
    if about.awaits:
        return about.awaits
    if about.fire_at is None:
        return "it was never triggered, or it is older than the history kept."
    if about.passed_over:
        return (
            f"it was due, and was {about.passed_over}: nobody was there to launch it, and the job says "
            f"misfire = {about.misfire}."
        )
    if about.settled_to is None or about.fire_at > about.settled_to:
        return "it was due, and no node has claimed it yet."
    said = "it was a fire time of the job, and it is settled: nobody launches it any more"
    if about.misfire in ("skip", "once"):
        word = {"skip": "skipped", "once": "coalesced with a later one"}[about.misfire]
        said += f". With misfire = {about.misfire} it was {word} if no node was there at the time"
        said += ", or it is from before the job was first seen, or older than the history kept"
    else:
        said += ". It is from before the job was first seen, or older than the history kept"
    return f"{said}; which of these, this node cannot know."


def _not_due(about: Absent) -> str:
    """Why it has not come by the schedule of its job; "" if its time has come."""
    at, now = about.fire_at or 0.0, about.now
    if about.blacked_out:
        said = "its time lies in a blackout of the job, and nothing fires then"
        return f"{said}; the next time is {iso(about.following)}." if about.following else f"{said}."
    if not about.own:
        return "it was never due: the job, as it is now, has no schedule."
    if not about.is_fire_time:
        said = "it was never due: the job's schedule, as it is now, has no such time"
        return f"{said}; the next one after it is {iso(about.following)}." if about.following else f"{said}."
    if at <= now:
        return ""
    if about.held:
        return f"its time is in {at - now:.0f} s, but {IS_HELD}."
    return f"it is due in {at - now:.0f} s{', and then waits for its parents' if about.child else ''}."


def _decided(fire: Fire) -> str:
    """What became of a fire time whose run has no row."""
    return f"it was a fire time of the job, due {when(fire.due)}, and was {_word(fire)}: {fire.reason}."


def not_launched(fire: Fire) -> str:
    """For the job of such a fire time."""
    return f"Its fire time {iso(fire.fire_at)} was {_word(fire)}: {fire.reason}."


def undecided(job: Job, fire: Fire, wall: float) -> str:
    """Of a fire time that this node does not pursue."""
    return f"Its fire time {iso(fire.fire_at)} is {fire.reason}. {given_up(job, fire.due, wall)}"


def _word(fire: Fire) -> str:
    return fire.decision + (f" into {fire.run}" if fire.decision == COALESCED and fire.run else "")

"""What nodes say to each other about logs: any other text is refused, and one caller cannot take all places."""

from __future__ import annotations

import json
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from coordd.errors import RefusedError, RemoteProtocolError
from coordd.services.logs.files import Piece, Place
from coordd.services.logs.questions import OWNS, PIECE_BYTES_MAX, Question, Reader, Told, question_of, refusal, told_of
from coordd.services.logs.reading import AFAR_MAX, AFAR_OF_ONE_MAX, Reading
from coordd.services.relay import BODY_BYTES_MAX

SUE = Reader("sue", 7, OWNS, "sellers")
ASKED = Question("sales#1", 2, SUE, Place(3, 4, 5), 0)


def test_questions_and_answers_come_back_as_they_were() -> None:
    assert question_of(ASKED.pack()) == ASKED
    first = Question("sales#1", 0, SUE, tail=9)
    assert question_of(first.pack()) == first
    told = Told(Piece(bytes(range(256)), Place(1, 2, 3), 9, True), "/var/log", False)
    assert told_of(told.pack()) == told
    with pytest.raises(RefusedError, match="who are you") as caught:
        told_of(refusal(RefusedError("who are you", kind="not_permitted", hint="go away")))
    assert (caught.value.kind, caught.value.hint) == ("not_permitted", "go away")


def test_the_largest_piece_fits_into_an_answer_and_the_longest_id_into_a_question() -> None:
    told = Told(Piece(b"x" * PIECE_BYTES_MAX, Place(2**64, 2**32, 2**53), 2**53, True), "/" * 1024, False)
    assert len(told.pack().encode()) < BODY_BYTES_MAX
    run = f"{'j' * 64}#{'i' * 128}"
    long = Question(run, 10**6, Reader("n" * 200, 2**32, OWNS, "g" * 64), Place(2**64, 2**32, 2**53), 2**53)
    assert question_of(long.pack()).run == run


@pytest.mark.parametrize(
    "said",
    [
        "", "[]", "null", "{}", "[" * 5000, '["sales#1",0,["ann",0,"root",""],null,0]',
        '["sales#1",-1,["ann",0,"operator",""],null,0]', '["sales#1",0,["ann",0,"operator",""],[1,2],0]',
        '["sales#1",0,["ann",0,"operator",""],[1,2,-3],0]', '["sales#1",true,["ann",0,"operator",""],null,0]',
        '["../x#1",0,["ann",0,"operator",""],null,0]', '["..#1",0,["ann",0,"operator",""],null,0]',
        '["sales",0,["ann",0,"operator",""],null,0]', '["/etc/x#1",0,["ann",0,"operator",""],null,0]',
        '["sales#1",0,["ann",0,"operator",5],null,0]', '["sales#1",0,["ann",0,"operator",""],null,1e9]',
    ],
)  # fmt: skip
def test_a_question_without_sense_is_refused(said: str) -> None:
    with pytest.raises(RemoteProtocolError):
        question_of(said)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=9))
def test_an_answer_without_sense_is_refused(said: Any) -> None:
    with pytest.raises((RemoteProtocolError, RefusedError)):
        told_of(json.dumps(said))


def test_one_caller_does_not_take_the_places_of_all() -> None:
    node: Any = SimpleNamespace(hostname="here")
    nothing: Any = None
    reading = Reading(node, nothing, nothing, nothing)
    with ExitStack() as held:
        for number in range(AFAR_OF_ONE_MAX):
            held.enter_context(reading.place_afar("there", 7))
            held.enter_context(reading.place_afar("here", 7 + number))
        with pytest.raises(RefusedError, match="4 of them yours"), reading.place_afar("there", 7):
            pass
        for number in range(AFAR_MAX - AFAR_OF_ONE_MAX):
            held.enter_context(reading.place_afar("there", 100 + number))
        with pytest.raises(RefusedError, match="16 callers here"), reading.place_afar("there", 99):
            pass
    with reading.place_afar("there", 7):
        pass

"""What the supervisor of a unit reads as root: exactly what a holder wrote, or it is refused."""

from __future__ import annotations

import os
import random

import pytest

from coordd.runner.unit.request import VERSION, Request, pack, unpack

WHOLE = Request(
    ["/bin/sh", "-c", "echo ä\n", ""],
    {"PATH": "/bin", "A": "b=c\n", "E": ""},
    "/tmp",
    user="etl",
    label=2**61 + 5,
    limits={"memory": 2**40, "tasks": 7},
    secrets="spark.x=1\n",
)


def fields(request: Request) -> dict[str, object]:
    return {name: getattr(request, name) for name in Request.__slots__}


def test_it_arrives_as_it_was() -> None:
    assert fields(unpack(pack(WHOLE))) == fields(WHOLE)
    assert unpack(pack(WHOLE)).limits == {"memory": 2**40, "cpu_weight": 0, "tasks": 7}
    name = os.fsdecode(b"/opt/\xff")
    assert unpack(pack(Request([name], {}, ""))).argv == [name]


def test_a_nul_cannot_move_a_boundary() -> None:
    for bad in (Request(["a\0b"], {}, ""), Request(["a"], {"A": "x\0B=y"}, ""), Request(["a"], {}, "", user="\0root")):
        with pytest.raises(ValueError, match="NUL"):
            pack(bad)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"2" + pack(WHOLE)[1:],
        VERSION.encode(),
        pack(WHOLE).replace(b"\0004\0", b"\000400\0"),
        pack(WHOLE).replace(b"\0004\0", b"\000-4\0"),
        pack(WHOLE).replace(b"\0004\0", b"\0000\0"),
        pack(WHOLE).replace(b"PATH=", b"="),
        pack(WHOLE) + b"\0noequals",
    ],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        unpack(data)


def test_spoilt_bytes_are_a_request_or_refused() -> None:
    draw = random.Random(5)
    whole = pack(WHOLE)
    for _ in range(2000):
        spoilt = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            spoilt[draw.randrange(len(spoilt))] = draw.randrange(256)
        try:
            assert unpack(bytes(spoilt)).argv
        except ValueError:
            continue

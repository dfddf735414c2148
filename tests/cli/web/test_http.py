"""What anybody on the machine may send to the pages: nothing of it ends the program."""

from __future__ import annotations

import socket

from cli.web.conftest import Pages


def sent(pages: Pages, line: str) -> bytes:
    with socket.create_connection(("127.0.0.1", pages.port), timeout=30) as sock:
        sock.sendall(f"{line}\r\nHost: 127.0.0.1:{pages.port}\r\n\r\n".encode())
        return sock.makefile("rb").read()


def test_an_address_that_cannot_be_read_is_answered_and_ends_nothing(pages: Pages) -> None:
    assert sent(pages, "GET http://[::1 HTTP/1.1").startswith(b"HTTP/1.1 400")
    pages.enter()
    assert pages.get("/")[0] == 200
    assert pages.defects == []


def test_a_day_without_a_neighbour_is_no_day_also_of_a_page_that_is_kept_up_to_date(pages: Pages) -> None:
    pages.enter()
    for day in ("9999-12-31", "0001-01-01"):
        assert "is not a date" in pages.get(f"/jobs/j/{day}")[1]
        answer, _ = pages.ask("GET", f"/live?page=/jobs/j/{day}")
        assert b"is not a date" in next(line for line in answer if line.startswith(b"data: "))
    assert pages.get("/")[0] == 200

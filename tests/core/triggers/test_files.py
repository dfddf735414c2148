"""Which files are complete, for any sequence of looks."""

from __future__ import annotations

from hypothesis import given, strategies as st

from coordd.core.triggers.files import Found, Looks

SETTLE_S = 2.0

# What one look finds: the state of each of a few files, or that it is not there; and how long it comes after the last.
LOOKS = st.lists(
    st.tuples(
        st.floats(0.0, 5.0), st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 2), st.integers(0, 2)))
    ),
    max_size=12,
)


def found(state: dict[str, tuple[int, int]]) -> list[Found]:
    return [Found(f"/in/{name}", size, changed, changed) for name, (size, changed) in state.items()]


@given(LOOKS)
def test_a_file_is_complete_if_it_was_the_same_for_long_enough_and_else_not(
    looks: list[tuple[float, dict[str, tuple[int, int]]]],
) -> None:
    here = Looks(SETTLE_S)
    now, past = 100.0, list[tuple[float, list[Found]]]()
    for pause, state in looks:
        now += pause
        files = found(state)
        complete = here.look(files, now)
        expected = set()
        for file in files:
            since = now
            for at, earlier in reversed(past):
                if file not in earlier:
                    break
                since = at
            seen_before = bool(past) and file in past[-1][1]
            if seen_before and now - since >= SETTLE_S:
                expected.add(file)
        assert set(complete) == expected
        assert here.unsettled == len(files) - len(expected)
        past.append((now, files))


def test_files_come_oldest_first_and_one_that_is_written_again_is_another_arrival() -> None:
    here = Looks(0.0)
    files = [Found("/in/b", 1, 10, 10), Found("/in/a", 1, 20, 20), Found("/in/c", 1, 10, 10)]
    here.look(files, 1.0)

    assert [file.path for file in here.look(files, 2.0)] == ["/in/b", "/in/c", "/in/a"]
    assert Found("/in/b", 1, 10, 10).key == Found("/in/b", 1, 10, 99).key, "a new name or mode is not new content"
    assert len({file.key for file in (*files, Found("/in/b", 2, 10, 10), Found("/in/b", 1, 11, 11))}) == 5
    assert files[0].arrival().values == {"path": "/in/b", "name": "b", "dir": "/in", "size": "1", "key": "/in/b"}

"""How long hypothesis looks for a counterexample.

`make test` tries the same examples every time: a failure is a failure for everybody. To look further, with other
examples on every call and LONGER times as many of them:

    make test ARGS="core --hypothesis-profile=long"

What that finds becomes a test of its own, or an @example, so that the short search sees it too.
"""

from __future__ import annotations

from hypothesis import settings

LONGER = 25

# A machine that is shared is slow now and then: no example has a deadline. No database: it would be another input.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None, print_blob=True)
settings.register_profile("long", derandomize=False, deadline=None, print_blob=True)


def examples(count: int, steps: int = 50) -> settings:
    """Settings with that many examples, and steps of a state machine; more of both under the profile ``long``."""
    longer = LONGER if settings.get_current_profile_name() == "long" else 1
    return settings(max_examples=count * longer, stateful_step_count=steps)

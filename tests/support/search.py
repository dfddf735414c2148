"""How long hypothesis searches for a counterexample.

`make test` tries the same examples every time, so a failure is a failure for everybody. This command tries other
examples on every call, and LONGER times as many:

    make test ARGS="core --hypothesis-profile=long"

If this finds a failure, the example becomes a separate test or an @example, so that the short search sees it too.
"""

from __future__ import annotations

from hypothesis import settings

LONGER = 25

# A shared machine is sometimes slow, so no example has a deadline. There is no database: it would be another input.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None, print_blob=True)
settings.register_profile("long", derandomize=False, deadline=None, print_blob=True)


def examples(count: int, steps: int = 50) -> settings:
    """Settings with that number of examples and of steps of a state machine; more of both
    under the profile ``long``.
    """
    longer = LONGER if settings.get_current_profile_name() == "long" else 1
    return settings(max_examples=count * longer, stateful_step_count=steps)

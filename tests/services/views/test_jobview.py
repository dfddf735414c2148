"""`job show`: what the keys of a job file mean, as JSON has it."""

from __future__ import annotations

import json

from coordd.core.groups.expand import Expand
from coordd.core.jobs.job import After, Command, Dedupe, Job
from coordd.services.views.jobview import everything


def test_keys_with_several_values_are_objects_and_no_text_of_python() -> None:
    job = Job(
        name="each",
        digest="d",
        launch=Command(argv=("/bin/true",)),
        after=After(jobs=("load",)),
        dedupe=Dedupe(key="{day}"),
        expand=Expand(key="part", values=("a", "b", "c"), chunk=2),
    )
    shown = everything(job, redacted=False)
    assert json.loads(json.dumps(shown)) == shown
    assert shown["after"]["jobs"] == ["load"]
    assert shown["dedupe"] == {"key": "{day}", "period_s": 0.0, "then": "same"}
    assert (shown["expand"]["values"], shown["chunk"]) == (["a", "b", "c"], 2)

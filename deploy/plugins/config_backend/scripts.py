"""The configuration backend `scripts`: a nightly job for each script of a directory, spread over an hour."""

import os


def jobs() -> dict[str, dict[str, object]]:
    """The tables of the jobs by name, as job files have them."""
    directory = os.environ.get("SITE_SCRIPTS", "/opt/nightly")
    names = sorted(name for name in os.listdir(directory) if name.endswith(".sh"))
    return {
        name.removesuffix(".sh"): {
            "schedule": f"{number % 60} 2 * * *",
            "command": {"argv": ["/bin/sh", os.path.join(directory, name)]},
        }
        for number, name in enumerate(names)
    }

"""python -m packages share|wheel|wheelhouse|deb|rpm [EXTRA…]: builds one of them under build/."""

from __future__ import annotations

import shutil
import sys

from packages import deb, lock, rpm, share, wheelhouse

OUT = wheelhouse.BUILD / "packages"
HOUSE = wheelhouse.BUILD / "wheelhouse"
NEEDS = {"deb": ("dpkg-deb", "dpkg-dev"), "rpm": ("rpmbuild", "rpm")}


def main() -> int:
    """Exit code 0 if it was built, 1 if not, 2 for a wrong call."""
    target, *extras = sys.argv[1:] or [""]
    if target not in ("share", "wheel", "wheelhouse", *NEEDS):
        print(__doc__, file=sys.stderr)
        return 2
    program, package = NEEDS.get(target, ("", ""))
    if program and shutil.which(program) is None:
        print(f"make {target} needs {program} (Debian: apt-get install {package})", file=sys.stderr)
        return 1
    try:
        print(_built(target, extras or list(lock.EXTRAS)))
    except (wheelhouse.BuildError, lock.LockError) as exc:
        print(f"make {target}: {exc}", file=sys.stderr)
        return 1
    return 0


def _built(target: str, extras: list[str]) -> str:
    if target == "share":
        return "\n".join(map(str, share.write(wheelhouse.BUILD / "share")))
    if target == "wheel":
        return str(wheelhouse.wheel(OUT))
    house = wheelhouse.wheelhouse(HOUSE, extras)
    if target == "wheelhouse":
        return f"{house}: pip install --no-index --find-links {house} --require-hashes -r {house}/requirements.lock"
    return str(deb.build(house, OUT) if target == "deb" else rpm.build(house, OUT))


if __name__ == "__main__":
    sys.exit(main())

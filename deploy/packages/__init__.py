"""What a site installs: the wheel, the wheelhouse, the Debian and the RPM package, and the files that they all carry.

The version is that of `coordd/__init__.py`, the libraries are those of `requirements.lock`: nothing is written twice.
`python -m packages TARGET` builds one of them; the Makefile has a target for each.
"""

"""Certificates for the servers of tests."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import NamedTuple

from support.servers.server import HOST, output_of


class Certificates(NamedTuple):
    """Paths of a certificate authority, and of a certificate by that authority for servers and clients."""

    ca: str
    cert: str
    key: str


def certificates(directory: Path, name: str = HOST) -> Certificates:
    """Make a new authority, and a certificate for ``name`` (an address or a host)."""
    kind = "IP" if name.replace(".", "").isdigit() else "DNS"
    made = Certificates(*[str(directory / file) for file in ("ca.pem", "cert.pem", "key.pem")])
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    request, ca_key = str(directory / "request.pem"), str(directory / "ca-key.pem")
    extensions = directory / "extensions"
    extensions.write_text(f"subjectAltName={kind}:{name}\n")
    for argv in (
        ["openssl", "req", "-x509", *curve, "-keyout", ca_key, "-out", made.ca, "-subj", "/CN=tests"],
        ["openssl", "req", *curve, "-keyout", made.key, "-out", request, "-subj", f"/CN={name}"],
        [
            "openssl",
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            made.ca,
            "-CAkey",
            ca_key,
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            str(extensions),
            "-out",
            made.cert,
        ],
    ):
        output_of(argv, {"PATH": os.environ["PATH"], "HOME": str(directory)})
    return made


def asking(own: Certificates) -> ssl.SSLContext:
    """Of a server that lets in only clients with a certificate by the same authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)
    context.load_verify_locations(own.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    return context

"""TLS errors as sentences for people."""

from __future__ import annotations

import ssl

# X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH.
OTHER_NAME = (62, 64)


def tls_error(exc: BaseException | None) -> ssl.SSLError | None:
    """The TLS error behind an exception, if any: libraries wrap it in their own."""
    seen: list[BaseException] = []
    while exc is not None and exc not in seen:
        if isinstance(exc, ssl.SSLError):
            return exc
        seen.append(exc)
        exc = exc.__cause__ or exc.__context__
    return None


def tls_sentence(shown: str, exc: ssl.SSLError, setting: str, advice: str = "") -> str:
    """The error of a TLS connection as a sentence, with advice.

    ``shown`` names the server, ``setting`` the key of [cluster] that has its address; ``advice``: what to do where a
    server named the address, and its certificate is for another one.
    """
    if isinstance(exc, ssl.SSLCertVerificationError):
        if exc.verify_code in OTHER_NAME:
            advice = advice or (
                f"write the address in [cluster] {setting} as the certificate has it, or give the server one for this "
                "name"
            )
            return f"{shown}: its certificate is for another name ({exc.verify_message}): {advice}"
        return f"{shown}: its certificate is not accepted ({exc.verify_message}): set [cluster] tls_ca"
    reason = exc.reason or str(exc)
    if "CERTIFICATE" in reason.upper() and "ALERT" in reason.upper():
        return f"{shown} does not accept our certificate, or wants one ({reason}): set [cluster] tls_cert and tls_key"
    return f"{shown} does not speak TLS as expected ({reason}): is this its TLS port?"

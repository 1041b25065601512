"""Key and certificate by which the two ends of a link authenticate each other.

Certificates are self-signed: each end reads the other's from the catalog, and accepts no other.

Source: RFC 5280; ``cryptography`` makes them, and both ends check them (TLS 1.2 or later).
"""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headrace.process import durable, secret_files

HOST_NAME: Final = "headrace"
"""Subject of every certificate: whole certificates are compared, so the name does not matter."""
_EVER: Final = (
    datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
    datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC),
)
"""Validity: a certificate ends when the catalog names another, not by a clock, which may be off."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both in PEM."""

    certificate: bytes
    key: bytes


def load_or_create(folder: Path) -> KeyPair:
    """Return the key pair in ``folder``; make it if there is none.

    Raises:
        OSError: the file cannot be read or written.
        PrerequisiteError: another user owns the file.
    """
    path = folder / "link.pem"
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = _made()
    draft = folder / f".link.{os.getpid()}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(made.certificate + made.key)
        file.flush()
        os.fsync(handle)
    try:
        os.link(draft, path)  # fails if another process was first
    except FileExistsError:
        return _read(path)
    finally:
        draft.unlink()
    durable.sync(folder)
    return made


def _read(path: Path) -> KeyPair:
    secret_files.restrict(path, "key")
    text = path.read_bytes()
    middle = text.index(b"-----BEGIN PRIVATE KEY-----")
    return KeyPair(text[:middle], text[middle:])


def _made() -> KeyPair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_EVER[0])
        .not_valid_after(_EVER[1])
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return KeyPair(certificate.public_bytes(pem), key.private_bytes(pem, form, plain))

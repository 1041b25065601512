"""Certificates of a test: authorities, and server certificates that they sign."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """A certificate authority with a new key."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._cert = self._sign(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.root = self._cert.sign(self._key, hashes.SHA256()).public_bytes(
            serialization.Encoding.PEM
        )

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        made = made.public_key(key).serial_number(x509.random_serial_number())
        return made.not_valid_before(now - _DAY).not_valid_after(now + _DAY)

    def install(self, folder: Path) -> int:
        """Write server.crt and server.key for 127.0.0.1 into a server's folder; return the serial.

        The files get the folder's owner.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = self._sign(_named("server"), key.public_key()).add_extension(address, critical=False)
        certificate = made.sign(self._key, hashes.SHA256())
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        owner = folder.stat()
        for name, data in (
            ("server.key", secret),
            ("server.crt", certificate.public_bytes(serialization.Encoding.PEM)),
        ):
            path = folder / name
            path.write_bytes(data)
            path.chmod(0o600)
            os.chown(path, owner.st_uid, owner.st_gid)
        return certificate.serial_number

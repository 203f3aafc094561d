"""Certificates for the server's TLS and keys for devices, in the forms Flower reads.

    authority   a certificate authority of the fleet's own: devices trust what it signed (ca.crt, ca.key)
    server      the SuperLink's certificate, for the names and addresses devices know it by (server.crt, server.key)
    device      an ECDSA P-384 key pair; the public half is registered at the server (device-3, device-3.pub)

Private halves are readable by their owner alone. No file is ever overwritten.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from kfl.core.errors import KflError, MissingExtraError
from kfl_fleet.private import private_folder

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

YEARS_AUTHORITY = 10
DAYS_SERVER = 825
"""Some clients refuse longer lifetimes."""


@dataclass(frozen=True)
class Pair:
    """A certificate or public key, and the private key that belongs to it."""

    public: Path
    private: Path


def make_authority(folder: Path, name: str = "kfl fleet") -> Pair:
    """A certificate authority for one fleet: ca.crt goes to every device, ca.key should leave the server's disk."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    pair = Pair(folder / "ca.crt", folder / "ca.key")
    key = _new_key()
    subject = _name(f"{name} authority")
    certificate = (
        _builder(subject, subject, key, timedelta(days=365 * YEARS_AUTHORITY))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    _write_pair(pair, certificate, key)
    return pair


def make_server_certificate(folder: Path, authority: Pair, hosts: Sequence[str] = ("localhost", "127.0.0.1")) -> Pair:
    """A certificate for the SuperLink under all names and addresses in `hosts`, signed by the authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    pair = Pair(folder / "server.crt", folder / "server.key")
    signer = _read_key(authority.private)
    try:
        signed = x509.load_pem_x509_certificate(authority.public.read_bytes())
    except (OSError, ValueError) as problem:
        raise KflError(f"{authority.public} does not hold the authority's certificate.") from problem
    key = _new_key()
    certificate = (
        _builder(_name(hosts[0]), signed.subject, key, timedelta(days=DAYS_SERVER))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    _write_pair(pair, certificate, key)
    return pair


def make_device_key(folder: Path, device: int) -> Pair:
    """A device's key pair, in OpenSSH's form as `ssh-keygen -t ecdsa -b 256` writes it.

    Not longer: key and signature travel with every request of a device.
    """
    from cryptography.hazmat.primitives import serialization

    pair = Pair(folder / f"device-{device}.pub", folder / f"device-{device}")
    key = _new_key(short=True)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(pair.private, private, 0o600)
    _write(pair.public, public + f" device-{device}\n".encode(), 0o644)
    return pair


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read."""
    _write(path, data, 0o600)


def _new_key(short: bool = False) -> EllipticCurvePrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as problem:
        raise MissingExtraError("cryptography", "fleet", "Making certificates and keys") from problem
    return ec.generate_private_key(ec.SECP256R1() if short else ec.SECP384R1())


def _read_key(path: Path) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as problem:  # TypeError: it has a password
        raise KflError(f"{path} does not hold the authority's private key, which new certificates need.") from problem
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise KflError(f"{path} does not hold an elliptic-curve key, so kfl did not make this authority.")
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, life: timedelta
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks of small devices are often behind
        .not_valid_after(now + life)
    )


def _name(common: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_pair(pair: Pair, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives import serialization

    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(pair.private, private, 0o600)
    _write(pair.public, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a new file. An existing file is never overwritten."""
    if not path.parent.exists():
        private_folder(path.parent)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise KflError(f"{path} already exists; remove it first to replace it.") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)

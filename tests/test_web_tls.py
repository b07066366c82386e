"""Pages over HTTPS from a real server: it is asked by its name, and has to prove that this is its name."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from local_web import LocalWeb, serving

from gruppo.config import load
from gruppo.errors import ConfigError
from gruppo.tools.fetch import Fetcher, FetchError, Page, Refusal, WebConfig
from gruppo.tools.services import ServicesConfig

x509 = pytest.importorskip("cryptography.x509")
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402

PEM = serialization.Encoding.PEM
NOW = datetime.datetime.now(datetime.UTC)


class Authority:
    """A certificate authority of the test's own; `file` is what has to be trusted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test's own authority")])
        self.file = folder / "authority.pem"
        own = self.certificate(self.name, self.key, x509.BasicConstraints(ca=True, path_length=None))
        self.file.write_bytes(own.public_bytes(PEM))

    def certificate(self, subject: Any, key: Any, *extensions: Any, days: int = 1) -> Any:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(NOW - datetime.timedelta(days=2))
        builder = builder.not_valid_after(NOW + datetime.timedelta(days=days))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self.key, hashes.SHA256())

    def server(self, *names: str, days: int = 1) -> ssl.SSLContext:
        """What a server of these names proves itself with."""
        key, file = ec.generate_private_key(ec.SECP256R1()), self.folder / "server.pem"
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
        known = x509.SubjectAlternativeName([_name(name) for name in names])
        secret = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file.write_bytes(secret + self.certificate(subject, key, known, days=days).public_bytes(PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def _name(name: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def site(tls: ssl.SSLContext) -> Iterator[LocalWeb]:
    with serving(tls) as web:
        web.page("/", b"<p>hello", "Content-Type: text/html")
        yield web


def get(web: LocalWeb, authority: Authority | None, url: str = "", **values: Any) -> Page:
    allow = [web.host, web.host.replace("localhost", "127.0.0.1")]
    trusted = str(authority.file) if authority else ""
    return asyncio.run(Fetcher(WebConfig(seconds=5.0, allow=allow, ca_file=trusted, **values)).get(url or web.url))


def test_a_server_is_asked_by_its_name_and_proves_it(authority: Authority) -> None:
    asked: list[str | None] = []
    tls = authority.server("localhost")
    tls.sni_callback = lambda socket, name, context: asked.append(name)
    with site(tls) as web:
        page = get(web, authority)
        assert (page.url.rstrip("/"), page.text()) == (web.url, "<p>hello")
        assert asked == ["localhost"] and web.asked[0][1]["host"] == web.host


def test_an_address_proves_itself_too(authority: Authority) -> None:
    with site(authority.server("localhost", "127.0.0.1")) as web:
        assert get(web, authority, web.url.replace("localhost", "127.0.0.1")).text() == "<p>hello"


@pytest.mark.parametrize(
    ("names", "days", "is_trusted"),
    [
        (["elsewhere.example"], 1, True),
        (["127.0.0.1"], 1, True),  # the address that is connected to, not the name that was asked for
        (["*.localhost"], 1, True),
        (["localhost"], -1, True),
        (["localhost"], 1, False),
    ],
    ids=["another name", "the address", "names below it", "too old", "of nobody known"],
)
def test_a_server_that_proves_nothing_is_asked_nothing(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, names: list[str], days: int, is_trusted: bool
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))  # trust comes from the config alone
    with site(authority.server(*names, days=days)) as web:
        with pytest.raises(FetchError, match="(?i)certificate") as caught:
            get(web, authority if is_trusted else None)
        assert caught.value.code == Refusal.connection and not web.asked


def test_a_redirect_to_a_server_that_proves_nothing_ends_there(authority: Authority) -> None:
    with site(authority.server("elsewhere.example")) as wrong, site(authority.server("localhost")) as web:
        web.page("/", b"", f"Location: {wrong.url}/", status="302 Found")
        with pytest.raises(FetchError, match="(?i)certificate"):
            allow = [web.host, wrong.host]
            asyncio.run(Fetcher(WebConfig(seconds=5.0, allow=allow, ca_file=str(authority.file))).get(web.url))
        assert len(web.asked) == 1 and not wrong.asked


def test_a_file_without_certificates_is_named_at_once(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    for file in (empty, tmp_path / "no.pem"):
        with pytest.raises(ConfigError, match=r"web.ca_file = '.*pem': no certificates"):
            Fetcher(load(ServicesConfig, [], {"web.ca_file": str(file)}).web)

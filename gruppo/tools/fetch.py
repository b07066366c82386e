"""Fetching one page from the web without being led into a private network, kept waiting, or flooded.

Each hop is checked anew: scheme, port, every address that the name has; then the connection goes to a checked address,
so that no second look-up can answer otherwise. It takes no proxies, cookies or passwords from anywhere and runs nothing
that a page holds; what its bytes say is for `page.py`.
"""

from __future__ import annotations

import asyncio
import codecs
import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gruppo.config import Config
from gruppo.errors import ConfigError

if TYPE_CHECKING:
    import httpx2

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ENCODINGS = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
_TYPES = re.compile(r"text/[\w.+-]+|application/(pdf|json|xml|[\w.+-]+\+(xml|json))|")
_GLOBAL_V6 = ipaddress.ip_network("2000::/3")
_REFUSED = tuple(
    map(
        ipaddress.ip_network,
        (
            "2002::/16",  # 6to4: holds an IPv4 address
            "2001::/23",  # Teredo and other protocols
            "192.0.0.0/24",  # protocol assignments, some of which count as global
            "192.88.99.0/24",  # relays of 6to4
            "168.63.129.16/32",  # a cloud's own services, at a public address
        ),
    )
)
_MAX_URL = 2_000
_MAX_TRIES = 3  # addresses of one name


class WebConfig(Config):
    """How the web tools fetch pages."""

    seconds: float = Field(15.0, gt=0)
    """Time for a page, name look-up and redirects included."""
    max_bytes: int = Field(5_000_000, ge=1)
    """Largest page, unpacked."""
    max_redirects: int = Field(5, ge=0)
    """How often a page may send on to another address."""
    ports: list[int] = Field([80, 443], min_length=1)
    """Ports that may be asked."""
    allow: list[str] = []
    """"host:port" of servers that may be asked although their address is private or their port another."""
    ca_file: str = ""
    """A PEM file of certificate authorities that are trusted besides the public ones, as an intranet has its own."""
    user_agent: str = Field("gruppo/0.1 (research tool for language-model agents)", min_length=1)
    """What the program calls itself; many sites refuse the defaults of libraries."""


class Refusal(StrEnum):
    """Why there is no page."""

    address = "address"  # not an address that may be asked
    lookup = "lookup"  # the name has no address
    connection = "connection"  # refused, broken off, or not HTTP
    timeout = "timeout"
    size = "size"
    redirects = "redirects"
    status = "status"
    content = "content"  # of a type or coding that can't be read


class FetchError(Exception):
    """No page; `code` for counting, the message for the agent."""

    def __init__(self, code: Refusal, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Page:
    """What a server sent: the address it came from in the end, its media type, the declared charset, the bytes."""

    url: str
    kind: str
    charset: str
    body: bytes = field(repr=False)

    def text(self) -> str:
        """The bytes as text."""
        return decoded(self.body, self.charset)


class Fetcher:
    """Fetches pages within the limits of its config. Raises ConfigError if its `ca_file` can't be read."""

    def __init__(self, config: WebConfig) -> None:
        self.config = config
        self._tls = self._trust() if config.ca_file else None  # slow to make, so made once, and only if it is needed

    async def get(self, url: str) -> Page:
        """The page at `url`. Raises FetchError."""
        try:
            async with asyncio.timeout(self.config.seconds):
                return await self._follow(url)
        except TimeoutError:
            raise FetchError(Refusal.timeout, f"{url[:200]}: no page within {self.config.seconds:g} s") from None

    async def _follow(self, url: str) -> Page:
        import httpx2

        place = self._checked(url)
        for _ in range(self.config.max_redirects + 1):
            found = await self._ask(place)
            if isinstance(found, Page):
                return found
            try:
                place = self._checked(str(place.join(found)))
            except httpx2.InvalidURL as error:
                raise FetchError(Refusal.address, f"{url[:200]}: sent on to a malformed address: {error}") from None
        raise FetchError(Refusal.redirects, f"{url[:200]}: sent on more than {self.config.max_redirects} times")

    def _checked(self, url: str) -> httpx2.URL:
        """The address, if it may be asked as far as can be told without a look-up. Raises FetchError."""
        import httpx2

        def refuse(why: str) -> FetchError:
            return FetchError(Refusal.address, f"{url[:200]!r}: {why}")

        if len(url) > _MAX_URL:
            raise refuse(f"an address of {len(url)} characters, the limit is {_MAX_URL}")
        try:
            place = httpx2.URL(url.strip())
        except (httpx2.InvalidURL, ValueError) as error:
            raise refuse(f"not a web address: {error}") from None
        if place.scheme not in ("http", "https") or not place.host:
            raise refuse("not a web address; it begins with http:// or https://")
        if place.userinfo:
            raise refuse("addresses with a user name or password are not asked")
        if _port(place) not in self.config.ports and not self._is_allowed(place):
            raise refuse(f"port {_port(place)} is not asked, only {', '.join(map(str, self.config.ports))}")
        return place.copy_with(fragment=None)

    def _is_allowed(self, place: httpx2.URL) -> bool:
        return f"{place.host}:{_port(place)}" in self.config.allow

    async def _ask(self, place: httpx2.URL) -> Page | str:
        """One hop: the page, or where it sends on to."""
        import httpx2

        addresses = await self._addresses(place)
        if place.scheme == "https":
            self._tls = self._tls or self._trust()
        unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # made in no time, where none is needed
        transport = httpx2.AsyncHTTPTransport(verify=self._tls or unused, trust_env=False)
        async with transport:
            for number, address in enumerate(addresses, start=1):
                request = httpx2.Request(
                    "GET",
                    place.copy_with(host=address),
                    headers={
                        "Host": place.netloc.decode("ascii"),
                        "User-Agent": self.config.user_agent,
                        "Accept": "text/html, application/xhtml+xml, application/pdf, text/*;q=0.9, */*;q=0.5",
                        "Accept-Encoding": "gzip, deflate",
                    },
                    extensions={"sni_hostname": place.host},
                )
                try:
                    response = await transport.handle_async_request(request)
                    return await self._read(place, response)
                except httpx2.ConnectError as error:
                    if number == len(addresses):
                        raise FetchError(Refusal.connection, f"{place}: can't be reached: {error}") from None
                except httpx2.DecodingError as error:
                    raise FetchError(Refusal.content, f"{place}: can't be unpacked: {error}") from None
                except httpx2.HTTPError as error:
                    what = f"{type(error).__name__}: {error}".rstrip(": ")
                    raise FetchError(Refusal.connection, f"{place}: {what}") from None
        raise AssertionError("a name has an address, or the look-up has failed")

    def _trust(self) -> ssl.SSLContext:
        """What proves that a server is who it says. Raises ConfigError for a file that holds no certificates."""
        import httpx2

        context = httpx2.create_ssl_context(trust_env=False)
        if self.config.ca_file:
            try:
                context.load_verify_locations(cafile=self.config.ca_file)
            except OSError as error:  # also an SSLError
                why = error.strerror or error
                raise ConfigError(f"tools.web.ca_file = {self.config.ca_file!r}: no certificates: {why}") from None
        return context

    async def _addresses(self, place: httpx2.URL) -> list[str]:
        """The addresses to try, all of them checked. Raises FetchError if one may not be asked."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(place.host, _port(place), type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise FetchError(Refusal.lookup, f"{place}: no address for {place.host!r}: {error}") from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        for address in addresses:
            if not is_public(address) and not self._is_allowed(place):
                raise FetchError(Refusal.address, f"{place}: {place.host!r} is not a public address")
        return addresses[:_MAX_TRIES]

    async def _read(self, place: httpx2.URL, response: httpx2.Response) -> Page | str:
        try:
            headers = response.headers
            if response.status_code in _REDIRECTS and "location" in headers:
                return headers["location"]
            if not response.is_success:
                raise FetchError(Refusal.status, f"{place}: status {response.status_code} {response.reason_phrase}")
            kind, _, parameters = headers.get("content-type", "").partition(";")
            kind = kind.strip().lower()
            if not _TYPES.fullmatch(kind):
                raise FetchError(Refusal.content, f"{place}: unsupported content type {kind[:100]}")
            if headers.get("content-encoding", "").strip().lower() not in _ENCODINGS:
                raise FetchError(Refusal.content, f"{place}: unsupported content encoding")
            body = await self._body(place, response)
        finally:
            await response.aclose()
        charset = re.search(r"charset\s*=\s*[\"']?([\w.:-]+)", parameters, re.IGNORECASE)
        return Page(str(place), _kind(place, kind, body), charset[1] if charset else "", body)

    async def _body(self, place: httpx2.URL, response: httpx2.Response) -> bytes:
        too_large = FetchError(Refusal.size, f"{place}: larger than {self.config.max_bytes} bytes")
        length = response.headers.get("content-length", "")
        if length.isdecimal() and len(length) < 20 and int(length) > self.config.max_bytes:
            raise too_large
        body = bytearray()
        async for chunk in response.aiter_bytes():  # unpacked in pieces of at most 1 MiB
            body += chunk
            if len(body) > self.config.max_bytes:
                raise too_large
        return bytes(body)


def _port(place: httpx2.URL) -> int:
    return place.port or {"http": 80, "https": 443}[place.scheme]


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet; those that hold another one (NAT64, 6to4) are not."""
    try:
        found: Any = ipaddress.ip_address(address)  # a scope (%eth0) makes it none of ours
    except ValueError:
        return False
    if found.version == 6:
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if found.scope_id or found not in _GLOBAL_V6:
            return False
    special = (found.is_multicast, found.is_private, found.is_reserved, found.is_loopback, found.is_link_local)
    refused = any(found in network for network in _REFUSED if network.version == found.version)
    return found.is_global and not any(special) and not refused


def _kind(place: httpx2.URL, declared: str, body: bytes) -> str:
    """The media type, by the bytes where they tell better. Raises FetchError for binary data."""
    if body.startswith(b"%PDF-"):
        return "application/pdf"
    if declared == "application/pdf":
        raise FetchError(Refusal.content, f"{place}: said to be a PDF, and is none")
    has_mark = body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if b"\0" in body[:4096] and not has_mark:
        raise FetchError(Refusal.content, f"{place}: unsupported content: binary data")
    return declared or (
        "text/html" if re.search(rb"<(!doctype|html|body|p|div)\b", body[:2048], re.I) else "text/plain"
    )


# ---- bytes to text ---------------------------------------------------------------------------------------------------

_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_META = re.compile(
    rb"<meta[^>]{1,300}?charset\s*=\s*[\"']?\s*([\w.:-]+)|<\?xml[^>]{1,200}encoding=[\"']([\w.:-]+)", re.I
)
_CHARSETS = re.compile(r"utf-(8|16|32)|iso8859|cp\d|koi8|gb|big5|euc_|shift_jis|iso2022|ascii|mac|tis-620|johab|hz")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def decoded(body: bytes, charset: str = "") -> str:
    """Text of bytes: by their byte order mark, the declared charset, the one in the page, UTF-8, else Windows-1252.

    The first that fits without errors; if none does, the first that is known, with U+FFFD for what is wrong.
    """
    for mark, name in _MARKS:
        if body.startswith(mark):
            return _clean(body.decode(name, "replace"))
    meta = _META.search(body[:2048])
    written = (meta[1] or meta[2]).decode("ascii") if meta else ""
    if written.lower().startswith("utf-16"):  # it can be read as ASCII, so it is not
        written = "utf-8"
    names = [known for name in (charset, written, "utf-8") if (known := _known(name))]
    for name in names:
        try:
            return _clean(body.decode(name))
        except UnicodeError:
            pass
    return _clean(body.decode("cp1252" if names == ["utf-8"] else names[0], "replace"))


def _known(charset: str) -> str:
    """Python's name of a charset of web pages, or nothing: it has codecs that are none."""
    try:
        name = codecs.lookup(charset).name if charset.isascii() else ""
    except LookupError:
        return ""
    if name in ("iso8859-1", "ascii"):
        return "cp1252"  # as browsers read them
    return name if _CHARSETS.match(name) else ""


def _clean(text: str) -> str:
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))

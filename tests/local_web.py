"""A web server of the tests' own: answers what a test says, or does to the connection whatever a test likes."""

from __future__ import annotations

import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Answer = bytes | Callable[[socketserver.StreamRequestHandler], None]


class LocalWeb:
    """Path -> answer; `asked` are the requests as they came: (path with query, headers in lower case)."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        self.stop = threading.Event()
        self.host, self.scheme = "", "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}"

    def page(self, path: str, body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
        self.answers[path] = "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[LocalWeb]:
    """A server until the block ends; with `tls` it speaks HTTPS, as "localhost"."""
    web = LocalWeb()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline(65_536).decode("latin-1").split()
            headers: dict[str, str] = {}
            while (header := self.rfile.readline(65_536).decode("latin-1").strip()) != "":
                name, _, value = header.partition(":")
                headers[name.lower()] = value.strip()
            web.bodies.append(self.rfile.read(int(headers.get("content-length", "0"))))
            web.asked.append((line[1], headers))
            answer = web.answers.get(line[1], web.answers.get(line[1].partition("?")[0]))
            if answer is None:
                answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            try:
                if isinstance(answer, bytes):
                    self.wfile.write(answer)
                else:
                    answer(self)
            except OSError:
                pass  # the other side has had enough

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        web.host = f"127.0.0.1:{server.server_address[1]}"
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
            web.host, web.scheme = web.host.replace("127.0.0.1", "localhost"), "https"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield web
        finally:
            web.stop.set()
            server.shutdown()
            thread.join()

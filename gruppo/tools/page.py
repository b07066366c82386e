"""From the bytes of a page to its title and text: HTML, PDF, JSON, plain text. What a browser hides is left out.

A page is hostile input to its parsers, so they run in a worker process with a clock and a memory limit. With the extra
`web` HTML is read by trafilatura and PDF by pypdf; without it HTML by the standard library, and PDF not at all.
"""

from __future__ import annotations

import base64
import re
import resource
from dataclasses import dataclass
from html.parser import HTMLParser

from gruppo.tools.base import FunctionTool
from gruppo.tools.fetch import FetchError, Page, Refusal
from gruppo.tools.schema import schema_of

MAX_CHARACTERS = 1_000_000
SECONDS = 20.0
MEMORY = 2 << 30  # bytes of address space

_HIDDEN_TAGS = frozenset({"script", "style", "noscript", "template", "svg", "head", "iframe", "object", "select"})
_VOID_TAGS = frozenset("area base br col embed hr img input link meta source track wbr".split())
_BLOCK_TAGS = frozenset(
    "p div br hr li ul ol table tr td th h1 h2 h3 h4 h5 h6 section article header footer nav aside main pre blockquote"
    " dl dt dd figure form title".split()
)
_HIDDEN_STYLE = re.compile(r"(display\s*:\s*none|visibility\s*:\s*hidden|(font-size|opacity)\s*:\s*0(?![\d.]))")


@dataclass(frozen=True)
class PageText:
    """What a page says."""

    url: str
    title: str
    text: str


class PageReader:
    """Reads pages, up to `workers` at once."""

    def __init__(self, workers: int = 2) -> None:
        description, schema = schema_of(read_page)
        self._worker = FunctionTool(
            read_page, "page", description, schema, SECONDS, MAX_CHARACTERS + 1_000, workers=workers
        )

    async def read(self, page: Page) -> PageText:
        """Title and text. Raises FetchError if it has none or can't be read in time."""
        if page.kind == "application/pdf":
            body = base64.b85encode(page.body).decode("ascii")
        else:
            body = page.text()[: 4 * MAX_CHARACTERS]
        result = await self._worker.call({"kind": page.kind, "body": body})
        if not result.ok:
            code = Refusal.timeout if result.timed_out else Refusal.content
            raise FetchError(code, f"{page.url}: {page.kind} can't be read: {result.error}")
        title, _, text = result.output.partition("\n")
        if not text.strip():
            raise FetchError(Refusal.content, f"{page.url}: no text in it")
        return PageText(page.url, title, text)

    def close(self) -> None:
        """End the worker processes."""
        self._worker.close()


def read_page(kind: str, body: str) -> str:
    """The title of a page, on one line, then its text.

    Args:
        kind: its media type
        body: its text; for a PDF its bytes, in base 85
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    if kind == "application/pdf":
        title, text = read_pdf(base64.b85decode(body))
    elif "html" in kind:
        title, text = read_html(body)
    else:
        title, text = "", body
    text = re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t\xa0]+", " ", text)).strip()
    return f"{' '.join(title.split())[:300]}\n{text[:MAX_CHARACTERS]}"


def read_html(text: str) -> tuple[str, str]:
    """(title, text) of HTML, without what it hides."""
    parser = _Visible()
    parser.feed(text)
    parser.close()
    visible = "".join(parser.parts)
    try:
        import trafilatura
    except ImportError:
        return parser.title, visible
    main = trafilatura.extract(text, include_comments=False, include_tables=True, favor_recall=True)
    return parser.title, main or visible


def read_pdf(body: bytes) -> tuple[str, str]:
    """(title, text) of a PDF. Raises ValueError without pypdf."""
    import io

    try:
        import pypdf
    except ImportError:
        raise ValueError('unsupported content type application/pdf: install "gruppo[web]" to read it') from None
    reader = pypdf.PdfReader(io.BytesIO(body))
    title = str((reader.metadata.title if reader.metadata else "") or "")
    parts: list[str] = []
    for page in reader.pages:
        parts.append(page.extract_text())
        if sum(map(len, parts)) > MAX_CHARACTERS:
            break
    return title, "\n\n".join(parts)


class _Visible(HTMLParser):
    """Collects the text that a browser would show."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.title = ""
        self._open: list[tuple[str, bool]] = []  # (tag, whether it hides what is in it)
        self._num_hidden = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        is_hidden = (
            (tag in _HIDDEN_TAGS)
            or "hidden" in given
            or given.get("aria-hidden") == "true"
            or bool(_HIDDEN_STYLE.search((given.get("style") or "").lower()))
        )
        if tag in _BLOCK_TAGS:
            self.parts.append("\n")
        if tag not in _VOID_TAGS:
            self._open.append((tag, is_hidden))
            self._num_hidden += is_hidden

    def handle_endtag(self, tag: str) -> None:
        if tag in (name for name, _ in self._open):
            while self._open:
                name, is_hidden = self._open.pop()
                self._num_hidden -= is_hidden
                if name == tag:
                    break
        if tag in _BLOCK_TAGS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] == "title":
            self.title = self.title or data.strip()
        elif not self._num_hidden:
            self.parts.append(data)

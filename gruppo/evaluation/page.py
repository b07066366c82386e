"""The frame of every page: the template with its style, a section with its title in the margin, a table.

HTML in, HTML out; knows no figure and no episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from gruppo.errors import StoreError
from gruppo.evaluation.plots import text


def page(title: str, header: str, sections: Iterable[str]) -> str:
    """A whole page that needs no other file; `title` is text, the others are HTML."""
    frame = Template(files("gruppo.evaluation").joinpath("report.html").read_text(encoding="utf-8"))
    return frame.substitute(title=text(title), header=header, sections="".join(sections))


def write_page(path: Path | str, content: str) -> None:
    """Write a page to `path`; folders are made. Raises StoreError where it can't be written."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A tool's output may hold half a surrogate pair; as a character reference it can be written, shown as U+FFFD.
        path.write_text(content, encoding="utf-8", errors="xmlcharrefreplace")
    except OSError as error:
        raise StoreError(f"{path}: can't be written: {error.strerror}") from None


def section(title: str, caption: str, body: str, wide: bool = False) -> str:
    """A section with its title and caption in the margin; none if its body is empty."""
    if not body:
        return ""
    kind = ' class="wide"' if wide else ""
    return f"<section{kind}><header><h2>{title}</h2><p>{caption}</p></header><div>{body}</div></section>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names the row; cells are HTML."""
    columns = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr><th>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>'

"""Fails where a built page would have a browser fetch something from the network.

``python -m tools.check_site site``. A link that a reader may follow is no such thing.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

REMOTE = re.compile(r"(?:https?:)?//")
IN_STYLE = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])((?:https?:)?//[^"')]+)""")
FETCHED = {"src", "srcset", "poster", "data", "xlink:href"}
LINKS = {"canonical", "prev", "next", "edit", "license"}  # rels that name a page


class Fetches(HTMLParser):
    """The addresses that a browser asks for by itself when it shows a page or an SVG."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found = IN_STYLE.findall(text)
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fetched = set(FETCHED)
        if tag in {"link", "image", "use"} and not LINKS & set(
            (dict(attrs).get("rel") or "").split()
        ):
            fetched.add("href")
        self.found += [value for name, value in attrs if name in fetched and _is_remote(value)]


def _is_remote(value: str | None) -> bool:
    return REMOTE.match((value or "").strip()) is not None


def main() -> int:
    site = Path(sys.argv[1])
    pages = [path for kind in ("html", "svg") for path in sorted(site.rglob(f"*.{kind}"))]
    bad = [(path, one) for path in pages for one in Fetches(path.read_text()).found]
    for path in sorted(site.rglob("*.css")):
        bad += [(path, one) for one in IN_STYLE.findall(path.read_text())]
    for path, one in bad:
        print(f"{path.relative_to(site)}: would fetch {one}", file=sys.stderr)
    print(f"{len(pages)} pages and pictures; {len(bad)} addresses on the network to fetch from")
    return 1 if bad or not pages else 0


if __name__ == "__main__":
    sys.exit(main())

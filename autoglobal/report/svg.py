"""The elements of an SVG picture: text, boxes and dots in groups, and the page around them."""

from __future__ import annotations

from xml.etree import ElementTree

from .._text import printable

_CHARACTER = 0.61  # its width in a monospaced font, as a part of the font size
_PALETTE = (
    *("#8ecae6", "#ffd166", "#95d5b2", "#f4a6c0", "#cdb4f6", "#f3e37c", "#f0a58a", "#a9c6b8"),
)
NEUTRAL = "#d8dee4"
# Text inside a part is dark in both colour schemes, because the parts are light in both.
_STYLE = """
text { font-family: ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #1f2328 }
.soft { fill: #59636e }
.warn { fill: #9a5b00 }
.held { fill: #111418 }
.page { fill: #ffffff }
.panel { fill: none; stroke: #d1d9e0 }
.part { stroke: #30363d }
.line { fill: none; stroke: #59636e }
.strong { font-weight: bold }
.sum, .local { stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.soft { fill: #9198a1 }
.warn { fill: #e3b341 }
.held { fill: #111418 }
.page { fill: #0d1117 }
.panel { stroke: #3d444d }
.line { stroke: #9198a1 }
}
"""


class Canvas:
    """A group of elements, with its origin at (0, 0)."""

    def __init__(self) -> None:
        self.group = ElementTree.Element("g")

    def text(
        self, x: float, y: float, text: str, kind: str = "", *, size: float = 11, **more: str
    ) -> ElementTree.Element:
        """One line; ``kind`` is a class of the style."""
        at = {"x": number(x), "y": number(y), "font-size": number(size), **more}
        return self._add("text", at, kind, text)

    def centred(self, x: float, y: float, text: str, size: float, *, up: bool = False) -> None:
        """One line with its middle at (x, y), from the bottom up with ``up``."""
        turned = {"transform": f"rotate(-90 {number(x)} {number(y)})"} if up else {}
        more = {"text-anchor": "middle", "dominant-baseline": "central", **turned}
        self.text(x, y, text, "held", size=size, **more)

    def box(
        self, x: float, y: float, width: float, height: float, kind: str, **more: str
    ) -> ElementTree.Element:
        at = {"x": number(x), "y": number(y), "width": number(width), "height": number(height)}
        return self._add("rect", {**at, **more}, kind)

    def dot(self, x: float, y: float, radius: float, kind: str, **more: str) -> ElementTree.Element:
        at = {"cx": number(x), "cy": number(y), "r": number(radius)}
        return self._add("circle", {**at, **more}, kind)

    def place(self, other: Canvas, x: float, y: float) -> None:
        """Put another group at (x, y)."""
        other.group.set("transform", f"translate({number(x)} {number(y)})")
        self.group.append(other.group)

    def _add(
        self, tag: str, attributes: dict[str, str], kind: str, text: str = ""
    ) -> ElementTree.Element:
        named = {"class": kind} if kind else {}
        element = ElementTree.SubElement(self.group, tag, {**attributes, **named})
        element.text = printable(text) or None
        return element


def hint(element: ElementTree.Element, text: str) -> None:
    """Give an element a text, which is shown where the pointer rests on it."""
    ElementTree.SubElement(element, "title").text = printable(text)


def page(content: Canvas, width: float, height: float, title: str) -> str:
    """The text of a whole file."""
    size = {"width": number(width), "height": number(height)}
    view = {"viewBox": f"0 0 {number(width)} {number(height)}", "role": "img"}
    root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, **view})
    hint(root, title)
    ElementTree.SubElement(root, "style").text = _STYLE
    ElementTree.SubElement(root, "rect", {**size, "class": "page"})
    root.append(content.group)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def colour(rank: int) -> str:
    """The colour of a rank, the same wherever it is drawn."""
    # Shifted after each palette, because ranks a whole palette apart are neighbours in a split
    # over another dimension.
    return _PALETTE[(rank + rank // len(_PALETTE)) % len(_PALETTE)]


def number(value: float) -> str:
    """At most two decimals, the same text each time."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text_width(text: str, size: float) -> float:
    return len(text) * size * _CHARACTER


def shortened(text: str, width: float, size: float = 11) -> str:
    """The text, without its middle where it is too long."""
    most = _most(width, size)
    if len(text) <= most:
        return text
    head = (most - 1) // 3
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def cut(text: str, width: float, size: float = 11) -> str:
    """The text, without its end where it is too long."""
    most = _most(width, size)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _most(width: float, size: float) -> int:
    return max(3, int(width / size / _CHARACTER))

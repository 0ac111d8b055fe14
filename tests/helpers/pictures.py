"""Reads the pictures of ``describe(m).draw``."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from oneflow import nn

from tests.helpers.support import B, Model, part, tensor

NS = "{http://www.w3.org/2000/svg}"


def one(name: str, array: np.ndarray, placement, sbp) -> Model:
    m = Model()
    whole = [B] * placement.ranks.ndim
    made = tensor(array).to_global(placement, whole)
    setattr(m, name, nn.Parameter(made.to_global(placement, sbp)))
    return m


def texts(element: ElementTree.Element) -> list[str]:
    return [text.text for text in element.iter(f"{NS}text")]


def panels(root: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """The picture of each tensor by its path."""
    return {
        texts(group)[0]: group
        for group in root.iter(f"{NS}g")
        if any(box.get("class") == "panel" for box in group.findall(f"{NS}rect"))
    }


def parts(panel: ElementTree.Element) -> list[tuple[str, list[float]]]:
    """Of each part what is told where the pointer rests on it, and its box."""
    return [
        (box.find(f"{NS}title").text, [float(box.get(k)) for k in ("x", "y", "width", "height")])
        for box in panel.iter(f"{NS}rect")
        if "part" in box.get("class", "").split()
    ]


def assert_tiled(panel: ElementTree.Element) -> None:
    """The parts fill one rectangle inside of the panel's frame, and nothing twice."""
    boxes = np.array([box for _, box in parts(panel)])
    frame = next(box for box in panel.iter(f"{NS}rect") if box.get("class") == "panel")
    starts, ends = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
    whole = ends.max(axis=0) - starts.min(axis=0)
    assert boxes[:, 2:].prod(axis=1).sum() == pytest.approx(whole.prod(), rel=0.01)
    assert (starts.min(axis=0) > 0).all()
    assert (ends.max(axis=0) < [float(frame.get("width")), float(frame.get("height"))]).all()
    for at in range(len(boxes)):
        overlap = np.minimum(ends[at], ends) - np.maximum(starts[at], starts)
        assert [*np.flatnonzero((overlap > 0.05).all(axis=1))] == [at]


def check_against(array: np.ndarray, placement, sbp, panel: ElementTree.Element) -> None:
    """Each rank is told with the very part that OneFlow gives it, and the parts are tiles."""
    assert_tiled(panel)
    told = {text.split(" on rank ")[1]: text for text, _ in parts(panel)}
    for rank in placement.ranks.flatten():
        (text,) = [text for who, text in told.items() if str(rank) in re.findall(r"\d+", who)]
        starts_ends = re.findall(r"(\d+):(\d+)", text)
        own = array[tuple(slice(int(start), int(end)) for start, end in starts_ends)]
        np.testing.assert_array_equal(own, part(array, placement, sbp, int(rank)))

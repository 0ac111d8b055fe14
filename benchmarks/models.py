"""What is built: a stack of GPT-like blocks, and flowvision's resnet50 and vit_base.

None of them is run: of the GPT there are the layers alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flowvision
from oneflow import nn

Put = Callable[[Any], Any]  # what is done with a layer before it is assigned


def as_it_is(layer: Any) -> Any:
    return layer


class Block(nn.Module):  # type: ignore[misc]
    """The layers of attention and of a perceptron, each behind a LayerNorm."""

    def __init__(self, width: int, put: Put) -> None:
        super().__init__()
        self.norm1 = put(nn.LayerNorm(width))
        self.qkv = put(nn.Linear(width, 3 * width))
        self.out = put(nn.Linear(width, width))
        self.norm2 = put(nn.LayerNorm(width))
        self.up = put(nn.Linear(width, 4 * width))
        self.down = put(nn.Linear(4 * width, width))


class GPT(nn.Module):  # type: ignore[misc]
    """Embeddings, ``blocks`` blocks, and a head over the vocabulary."""

    def __init__(
        self, blocks: int, width: int = 256, vocabulary: int = 1024, put: Put = as_it_is
    ) -> None:
        super().__init__()
        self.words = put(nn.Embedding(vocabulary, width))
        self.blocks = nn.Sequential(*[Block(width, put) for _ in range(blocks)])
        self.norm = put(nn.LayerNorm(width))
        self.head = put(nn.Linear(width, vocabulary, bias=False))


def resnet50() -> Any:
    return flowvision.models.resnet50()


def vit_base() -> Any:
    return flowvision.models.vit_base_patch16_224()

"""Training data: scikit-learn's handwritten digits, and Python's own sources."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CLASSES",
    "MODULES",
    "MODULE_BYTES",
    "PIXELS",
    "Digits",
    "Text",
    "load_library_text",
    "load_split_digits",
]

PIXELS = 64
CLASSES = 10
TEST_IMAGES = 360
SPLIT_SEED = 2022

MODULES = (
    "argparse", "configparser", "difflib", "doctest", "enum", "functools", "inspect", "ipaddress",
    "mailbox", "optparse", "pickle", "pickletools", "pydoc", "subprocess", "tarfile", "typing",
)  # fmt: skip
"""Modules of the standard library with the source text; the last is for testing."""
MODULE_BYTES = 32 * 1024
"""Bytes of text from the beginning of each module's source."""


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Images and labels: a row of 8 x 8 pixels from 0 to 1 for each image, and its digit."""

    train_images: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def load_split_digits() -> Digits:
    """Return all 1797 images, 360 of them for testing; the split never changes."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    images = (images[order] / 16).astype(np.float32)
    labels = labels[order].astype(np.int64)
    return Digits(
        train_images=images[TEST_IMAGES:],
        train_labels=labels[TEST_IMAGES:],
        test_images=images[:TEST_IMAGES],
        test_labels=labels[:TEST_IMAGES],
    )


@dataclass(frozen=True, kw_only=True)
class Text:
    """Text, as numbers from 0 to 255, one for each byte."""

    train: NDArray[np.int64]
    test: NDArray[np.int64]


def load_library_text() -> Text:
    """Return the modules' sources, always the same for a version of Python.

    Raise ``FileNotFoundError`` if this Python has no sources.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    parts = []
    for name in MODULES:
        path = folder / f"{name}.py"
        source = path.read_bytes() if path.is_file() else b""
        if len(source) < MODULE_BYTES:
            raise FileNotFoundError(
                f"{str(path)!r} has {len(source)} bytes, expected {MODULE_BYTES} or more: use a "
                "Python that has the sources of its standard library"
            )
        parts.append(np.frombuffer(source[:MODULE_BYTES], np.uint8).astype(np.int64))
    return Text(train=np.concatenate(parts[:-1]), test=parts[-1])

"""The handwritten digits that ship with scikit-learn, split once and for all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLASSES", "PIXELS", "Digits", "load_split_digits"]

PIXELS = 64
CLASSES = 10
TEST_IMAGES = 360
SPLIT_SEED = 2022


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Images of 8x8 pixels from 0 to 1, a row each, and the digits they show."""

    train_images: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def load_split_digits() -> Digits:
    """All 1797 images, 360 of them for testing; the split never changes."""
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

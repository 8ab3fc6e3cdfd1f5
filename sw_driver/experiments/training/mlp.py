"""Multilayer perceptron in numpy, with its parameters in one flat vector."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["Mlp"]

Array = NDArray[np.float32]


class Mlp:
    """Dense layers with ReLU between them and softmax cross entropy at the end, in FP32.

    The parameter vector holds, layer by layer, the weights (inputs x outputs, row-major) and the
    biases.

    Parameters
    ----------
    widths: inputs, hidden layers, classes.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        if len(widths) < 2 or min(widths) < 1:
            raise ValueError(f"widths are {widths!r}, expected at least two positive numbers")
        self._shapes = list(pairwise(widths))

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(inputs * outputs + outputs for inputs, outputs in self._shapes)

    def initial(self, rng: np.random.Generator) -> Array:
        """Return an initial parameter vector: weights by He, biases zero."""
        vector = np.zeros(self.parameters, dtype=np.float32)
        for weights, _ in self._layers(vector):
            scale = np.sqrt(2 / weights.shape[0])
            weights[:] = scale * rng.standard_normal(weights.shape)
        return vector

    def loss_and_gradient(
        self, parameters: Array, images: Array, labels: NDArray[np.int64]
    ) -> tuple[float, Array]:
        """Return the batch's mean cross entropy and its gradient, a vector like ``parameters``."""
        layers = self._layers(parameters)
        activations = self._activations(parameters, images)
        logits = activations[-1]
        logits = logits - logits.max(axis=1, keepdims=True)
        exponentials = np.exp(logits)
        totals = exponentials.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = float(np.mean(np.log(totals[:, 0]) - logits[rows, labels]))

        delta = exponentials / totals
        delta[rows, labels] -= 1
        delta /= np.float32(len(labels))
        gradient = np.empty_like(parameters)
        slots = self._layers(gradient)
        for number in reversed(range(len(layers))):
            weights, _ = layers[number]
            weight_slot, bias_slot = slots[number]
            weight_slot[:] = activations[number].T @ delta
            bias_slot[:] = delta.sum(axis=0)
            if number:
                delta = (delta @ weights.T) * (activations[number] > 0)
        return loss, gradient

    def accuracy(self, parameters: Array, images: Array, labels: NDArray[np.int64]) -> float:
        """Return the share of images with the label as the most likely class."""
        logits = self._activations(parameters, images)[-1]
        return float(np.mean(logits.argmax(axis=1) == labels))

    def _layers(self, vector: Array) -> list[tuple[Array, Array]]:
        """Return the weights and biases of each layer, as views of ``vector``."""
        views = []
        start = 0
        for inputs, outputs in self._shapes:
            middle = start + inputs * outputs
            end = middle + outputs
            views.append((vector[start:middle].reshape(inputs, outputs), vector[middle:end]))
            start = end
        return views

    def _activations(self, parameters: Array, images: Array) -> list[Array]:
        """Return the images, the outputs of each hidden layer, and the logits."""
        layers = self._layers(parameters)
        activations = [images]
        for number, (weights, biases) in enumerate(layers):
            values = activations[-1] @ weights + biases
            if number + 1 < len(layers):
                values = np.maximum(values, np.float32(0))
            activations.append(values)
        return activations

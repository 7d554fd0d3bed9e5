"""Metrics of a classifier, with nothing but numpy: accuracy, macro F1 and AUROC; of a regression MSE, MAE and R2.

A metric that has no value for what was evaluated (AUROC where only one class occurs) is left out, and never NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: By kind of target; `loss` goes with all of them.
NAMES = {
    "single": ("loss", "accuracy", "f1_macro", "auroc"),
    "multi": ("loss", "accuracy", "f1_macro", "auroc"),
    "regression": ("loss", "mse", "mae", "r2"),
}
LOWER_IS_BETTER = ("loss", "mse", "mae")

Floats = NDArray[np.floating[Any]]


def compute(kind: str, logits: Floats, labels: NDArray[Any]) -> dict[str, float]:
    """Return the metrics of an evaluation.

    Args:
        kind: `single` (one class of several), `multi` (any of several), or `regression`.
        logits: (rows, classes); of a regression (rows,) or (rows, 1).
        labels: (rows,) class numbers; of `multi` (rows, classes) with 0 and 1; of a regression (rows,) values.
    """
    logits = np.asarray(logits, dtype=np.float64)
    if kind == "regression":
        return regression(logits.reshape(-1), np.asarray(labels, dtype=np.float64).reshape(-1))
    if kind == "multi":
        found = {"accuracy": float(((logits > 0) == (labels > 0)).all(axis=1).mean()), "f1_macro": _f1_of_columns(logits > 0, labels > 0)}
        areas = [auroc(logits[:, column], labels[:, column] > 0) for column in range(logits.shape[1])]
    else:
        predicted = logits.argmax(axis=1)
        found = {"accuracy": float((predicted == labels).mean()), "f1_macro": f1_macro(predicted, labels)}
        scores = softmax(logits)
        if logits.shape[1] == 2:  # probabilities of 1.0 would tie; the difference of the logits does not
            areas = [auroc(logits[:, 1] - logits[:, 0], labels == 1)]
        else:
            areas = [auroc(scores[:, column], labels == column) for column in range(logits.shape[1])]
    known = [area for area in areas if area is not None]
    return {**found, "auroc": float(np.mean(known))} if known else found


def softmax(logits: Floats) -> Floats:
    """Return the probabilities of each row, of (rows, classes)."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Floats = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities


def f1_macro(predicted: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the mean F1 of the classes that are among the labels or the predictions, each as much as any other."""
    classes = np.union1d(predicted, labels)
    return float(np.mean([_f1(predicted == each, labels == each) for each in classes]))


def _f1_of_columns(predicted: NDArray[Any], labels: NDArray[Any]) -> float:
    return float(np.mean([_f1(predicted[:, column], labels[:, column]) for column in range(labels.shape[1])]))


def _f1(predicted: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return 2 TP / (2 TP + FP + FN), 0 where nothing is either predicted or there."""
    both = int((predicted & actual).sum())
    either = int(predicted.sum()) + int(actual.sum())
    return 2 * both / either if either else 0.0


def auroc(scores: Floats, positive: NDArray[Any]) -> float | None:
    """Return the probability that a positive row scores above a negative one, ties counting half; None where either is missing.

    Args:
        scores: (rows,) the higher, the more positive.
        positive: (rows,) of bool.
    """
    above = int(positive.sum())
    below = int(positive.size - above)
    if above == 0 or below == 0:
        return None
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # ties share the mean of their ranks
    return float((ranks[positive].sum() - above * (above + 1) / 2) / (above * below))


def regression(predicted: Floats, actual: Floats) -> dict[str, float]:
    """Return MSE, MAE, and R2 where the values are not all the same."""
    error = predicted - actual
    found = {"mse": float((error**2).mean()), "mae": float(np.abs(error).mean())}
    spread = float(((actual - actual.mean()) ** 2).sum())
    return {**found, "r2": 1 - float((error**2).sum()) / spread} if spread else found

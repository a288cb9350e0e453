"""What makes of a confidence the one that counts."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Calibrator(Protocol):
    """Says how often answers of a confidence are right, as `calibrant.calibration` fits them.

    One whose ``predict`` has a parameter ``predicted`` is told the labels as well. One with an attribute
    ``fingerprint`` is used in a cascade only with the classifier that this belongs to.
    """

    def predict(self, confidence: NDArray[np.float64], /) -> NDArray[np.float64]:
        """Return calibrated confidence, in [0, 1], shape (n,), of `confidence`, alike."""
        ...


def applied(calibrator: Calibrator) -> Callable[[float, str | None], float]:
    """Return what calibrates one confidence, given the label."""
    predict: Callable[..., NDArray[np.float64]] = calibrator.predict
    if "predicted" in inspect.signature(predict).parameters:
        return lambda confidence, label: float(predict(np.array([confidence]), predicted=[label])[0])
    return lambda confidence, _label: float(predict(np.array([confidence]))[0])


def behaviour(calibrator: Calibrator) -> dict[str, Any]:
    """Return what tells a calibrator from others: its class, and a digest of what it learned or does."""
    record = getattr(calibrator, "to_record", None)
    if callable(record):
        learned = json.dumps(record(), sort_keys=True, default=repr)
    else:
        learned = json.dumps(np.asarray(calibrator.predict(np.linspace(0.0, 1.0, 1001))).tolist())
    digest = hashlib.sha256(learned.encode("utf-8", "surrogatepass")).hexdigest()
    return {"class": type(calibrator).__qualname__, "sha256": digest}

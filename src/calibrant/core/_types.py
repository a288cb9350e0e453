"""Names of types that every floor uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
SingleArray: TypeAlias = NDArray[np.float32]
HalfArray: TypeAlias = NDArray[np.float16]
IntegerArray: TypeAlias = NDArray[np.int64]
IndexArray: TypeAlias = NDArray[np.intp]
BoolArray: TypeAlias = NDArray[np.bool_]
Record: TypeAlias = Mapping[str, Any]
"""JSON object that is read."""
JsonObject: TypeAlias = dict[str, Any]
"""JSON object that is made."""

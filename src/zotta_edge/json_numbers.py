"""Numbers as JSON has them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def finite(value: Any) -> Any:
    """The same value with None for NaN and infinities, which JSON does not have.

    >>> finite({"drift": float("nan"), "layers": [1.5, float("inf")]})
    {'drift': None, 'layers': [1.5, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(entry) for entry in value]
    if isinstance(value, np.generic):
        return finite(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

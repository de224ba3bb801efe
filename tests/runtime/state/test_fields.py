"""What a state is made of."""

import numpy as np
import pytest

from zotta_edge.runtime.state import fields as states


def test_a_generator_goes_on_where_it_was() -> None:
    rng = np.random.default_rng(3)
    rng.standard_normal(101, dtype=np.float32)
    rng.integers(0, 10, dtype=np.int32)  # leaves half of a 64-bit draw behind
    other = states.rng_from_array(states.rng_to_array(rng))
    np.testing.assert_array_equal(
        rng.integers(0, 99, 9, np.int32), other.integers(0, 99, 9, np.int32)
    )
    np.testing.assert_array_equal(rng.standard_normal(9), other.standard_normal(9))


@pytest.mark.parametrize("text", ["", "none", "sixteen letters!"])
def test_a_text_goes_round_in_one_shape(text: str) -> None:
    array = states.text_to_array(text)
    assert array.shape == (16,)
    assert states.text_from_array(array, [text]) == text
    with pytest.raises(ValueError, match="unknown name"):
        states.text_from_array(array, ["other"])


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than 16 bytes"):
        states.text_to_array("seventeen letters")

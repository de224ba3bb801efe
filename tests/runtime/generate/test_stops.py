"""Where a stop text ends an answer."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zotta_edge.runtime.generate.stops import before


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is slow
@given(
    st.lists(st.text("ab", max_size=3), max_size=8), st.lists(st.text("ab", min_size=1), max_size=3)
)
def test_a_text_ends_before_the_first_stop_however_it_is_cut(
    pieces: list[str], stops: list[str]
) -> None:
    """What comes out is free of stops, and all there is before the one completed first."""
    whole = "".join(pieces)
    told = "".join(before(pieces, tuple(stops)))
    assert whole.startswith(told)
    assert not any(stop in told for stop in stops)
    assert told == whole or any(whole.startswith(told + stop) for stop in stops)


def test_a_stop_of_megabytes_costs_no_more_than_the_text() -> None:
    """Its beginnings were all compared, each as a copy: 5 x 10^13 bytes a token."""
    assert "".join(before(["x"] * 50, ("x" * 10**7,))) == "x" * 50

"""Which layers each rule picks."""

import pytest

from zotta_edge.calibration.selection import Choice, adaptable, by_purity, by_score
from zotta_edge.cli.calibrate import parse_layers
from zotta_edge.errors import ZottaError
from zotta_edge.format import Layer, Norm

PAPER = [0.99, 0.95, 0.9, 0.8, 0.7, 0.62, 0.58, 0.55, 0.53, 0.52, 0.51, 0.51, 0.51]


def layers(*norms: int) -> list[Layer]:
    """One layer for each number of norms."""
    return [
        Layer(
            name=f"blocks.{index}",
            feature=f"feature.{index}",
            tensor=f"block_{index}",
            kind="tokens",
            channels=4,
            norms=tuple(Norm(f"blocks.{index}.norm{n}", 4, "tokens") for n in range(count)),
        )
        for index, count in enumerate(norms)
    ]


VIT = layers(*[2] * 12, 1)


def test_the_papers_curve_gives_the_papers_layers() -> None:
    assert by_purity(PAPER, VIT, Choice()).chosen == (3, 4, 5)


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        (Choice(max_layers=2), (4, 5)),
        (Choice(max_layers=9), (1, 2, 3, 4, 5)),
        (Choice(max_layers=9, keep_shallow=True), (0, 1, 2, 3, 4, 5)),
        (Choice(tau=0.8), (1, 2, 3)),
        (Choice(tau=0.95), (1,)),
        (Choice(tau=0.5), (9, 10, 11)),  # not the norm before the classifier
    ],
)
def test_settings_move_the_choice(choice: Choice, chosen: tuple[int, ...]) -> None:
    selection = by_purity(PAPER, VIT, choice)
    assert selection.chosen == chosen
    assert not selection.note


def test_a_candidate_between_others_that_are_not_counts() -> None:
    assert by_purity([0.9, 0.7, 0.5, 0.6, 0.5], layers(2, 2, 2, 2, 2), Choice()).chosen == (1, 3)


def test_below_tau_the_purest_layer_is_taken_and_it_is_said() -> None:
    selection = by_purity([0.9, 0.52, 0.57, 0.51], layers(2, 2, 2, 2), Choice())
    assert selection.chosen == (2,)
    assert "blocks.2 (0.570)" in selection.note
    assert "tau = 0.6" in selection.note


def test_a_model_of_one_layer_adapts_it() -> None:
    assert by_purity([0.9], layers(1), Choice()).chosen == (0,)


def test_layers_without_norms_and_the_last_norm_are_left_alone() -> None:
    assert adaptable(layers(0, 2, 0, 2, 1)) == [1, 3]
    assert adaptable(layers(1, 1, 1)) == [0, 1, 2]  # one norm a layer is just the architecture
    with pytest.raises(ZottaError, match="--keep-shallow"):
        by_purity([0.9, 0.9], layers(2, 0), Choice())


def test_other_rules_take_the_highest_scores_in_order() -> None:
    assert by_score([3, 1, 9, 2, 8, 99], layers(2, 2, 2, 2, 2, 1), Choice()).chosen == (0, 2, 4)
    assert by_score([3, 1, 9], layers(2, 2, 2), Choice(max_layers=1)).chosen == (2,)


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (Choice(tau=0.4), "between 0.5 and 1"),
        (Choice(tau=float("nan")), "between 0.5 and 1"),
        (Choice(max_layers=0), "at least one"),
        (Choice(layers=(3, 12)), "no layer 12"),
        (Choice(layers=()), "names no layer"),
        (Choice(rule="largest"), "unknown rule"),  # type: ignore[arg-type]
    ],
)
def test_senseless_choices_are_refused(choice: Choice, reason: str) -> None:
    with pytest.raises(ZottaError, match=reason):
        choice.check(12)


def test_layers_are_a_list_or_a_range() -> None:
    assert parse_layers(None) is None
    assert parse_layers("3,4,5") == parse_layers("3-5") == (3, 4, 5)
    assert parse_layers("1, 3-4") == (1, 3, 4)
    for text in ("", "a", "3-", "-1", "1;2", "5-3"):
        with pytest.raises(ZottaError, match="--layers"):
            parse_layers(text)

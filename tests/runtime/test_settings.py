"""Settings: defaults of the paper, from TOML and a command line, errors that name the field."""

from pathlib import Path

import pytest

from zotta_edge.__main__ import main
from zotta_edge.errors import ZottaError
from zotta_edge.runtime.methods.registry import METHODS
from zotta_edge.runtime.settings import OF_METHOD, Settings, by_methods


def test_the_papers_defaults() -> None:
    settings = Settings()
    assert (settings.pairs, settings.perturbation, settings.learning_rate) == (5, 0.01, 0.01)
    assert settings.weights("tokens") == (1.0, 0.4)
    assert settings.weights("map") == (0.1, 1.0)
    assert (settings.momentum, settings.steps, settings.queue) == (0.0, 1, 4)
    assert settings.prediction == "after"


def test_given_weights_win() -> None:
    assert Settings(entropy_weight=0).weights("tokens") == (0.0, 0.4)
    assert Settings(alignment_weight=2).weights("map") == (0.1, 2.0)


def test_gains_decay_as_spsa_has_it() -> None:
    settings = Settings(learning_rate_decay=0.602, perturbation_decay=0.101)
    assert (settings.rate(1), settings.size(1)) == (0.01, 0.01)
    assert settings.rate(10) == pytest.approx(0.01 / 10**0.602)
    assert settings.size(10) == pytest.approx(0.01 / 10**0.101)
    assert (Settings().rate(1000), Settings().size(1000)) == (0.01, 0.01)


def test_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "zotta.toml"
    path.write_text('pairs = 2\nlearning_rate = 1\nprediction = "mean"\nlayers = [4, 3]\n')
    settings = Settings.from_toml(path)
    assert (settings.pairs, settings.learning_rate, settings.layers) == (2, 1.0, (3, 4))
    assert settings.prediction == "mean"
    assert settings == Settings().replace(settings.to_dict())


def test_override() -> None:
    settings = Settings().override(
        ["pairs=2", "prediction=best", "always = true", "layers=[1]", "learning_rate=1e-3"]
    )
    assert settings == Settings(
        pairs=2, prediction="best", always=True, layers=(1,), learning_rate=0.001
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pairs=0", "pairs is 0: expected a number at least 1"),
        ("pairs=2.5", "pairs is 2.5: expected a whole number"),
        ("pairs=true", "pairs is True: expected a whole number"),
        ("always=1", "always is 1: expected true or false"),
        ("learning_rate=nan", "learning_rate is nan"),
        ("learning_rate=inf", "learning_rate is inf"),
        ("learning_rate=fast", "learning_rate is 'fast': expected a number"),
        ("momentum=1.0", "momentum is 1.0: expected a number from 0 to 0.999"),
        ("prediction=before", "expected one of after, mean, best"),
        ("layers=[]", "expected a list of layer indices"),
        ("layers=[-1]", "layers is -1"),
        ("learing_rate=1", "did you mean learning_rate"),
        ("nonsense=1", "no setting is called nonsense"),
        ("pairs", "expected name=value"),
    ],
)
def test_errors_name_the_field(text: str, message: str) -> None:
    with pytest.raises(ZottaError) as caught:
        Settings().override([text])
    assert message in str(caught.value)


def test_bad_toml_files(tmp_path: Path) -> None:
    path = tmp_path / "zotta.toml"
    with pytest.raises(ZottaError, match="cannot read"):
        Settings.from_toml(path)
    path.write_text("pairs = = 2")
    with pytest.raises(ZottaError, match="not valid TOML"):
        Settings.from_toml(path)
    path.write_text("pairs = 0")
    with pytest.raises(ZottaError, match=r"zotta\.toml: pairs is 0"):
        Settings.from_toml(path)


def test_every_setting_explains_itself() -> None:
    groups = by_methods()
    listed = [option for options in groups.values() for option in options]
    assert sorted(option.name for option in listed) == sorted(Settings().to_dict())
    assert all(option.about for option in listed)
    assert next(iter(groups)) == "every method"


def test_every_method_has_settings_of_its_own() -> None:
    assert OF_METHOD.keys() == METHODS.keys()
    for kind in OF_METHOD.values():
        assert isinstance(Settings(), kind)
        own = kind().to_dict()
        assert own == {name: Settings().to_dict()[name] for name in own}


@pytest.mark.parametrize(
    "name",
    # fmt: off
    [
        "pairs",
        "estimator",
        "perturbation",
        "directions",
        "entropy_weight",
        "reduction",
        "queue",
        "learning_rate",
        "momentum",
        "steps",
        "prediction",
        "layers",
        "episodic",
        "seed",
        "damping",
        "window",
        "budget",
        "filters",
        "always",
        "drift_threshold",
        "drift_window",
        "patience",
        "worthwhile",
        "guard",
        "max_step",
        "max_distance",
        "tolerance",
        "backoff",
        "collapse_share",
        "collapse_entropy",
        "perturbation_decay",
        "alignment_weight",
        "learning_rate_decay",
    ],
    # fmt: on
)
def test_names_of_the_first_version_still_work(name: str) -> None:
    assert name in Settings().to_dict()


def test_settings_are_listed_by_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapt", "--list-settings"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("every method:\n  audit ")
    assert "\n  class_memory " in text
    assert "\n  seed " in text
    assert "\nprimed:\n" in text
    assert "\nprimed, moments, zotta:\n" in text

"""Which methods there are, found by name and imported when they are first asked for."""

from collections.abc import Callable, Mapping
from importlib import import_module

from zotta_edge.errors import ZottaError
from zotta_edge.format import ModelInfo
from zotta_edge.runtime.methods.contract import Method, MethodSettings

METHODS: Mapping[str, str] = {  # name -> module.class in this package
    "none": "none.NoAdaptation",
    "primed": "primed.method.Primed",
    "moments": "moments.method.Moments",
    "zotta": "zotta.Zotta",
    "bn_adapt": "bn_adapt.method.BatchNormAdaptation",
    "alpha_bn": "alpha_bn.AlphaBatchNorm",
    "leantta": "leantta.LeanTta",
    "unmix_tns": "unmix_tns.method.UnMixTns",
    "lame": "lame.Lame",
    "t3a": "t3a.T3A",
    "neo": "neo.Neo",
    "foa": "foa.method.Foa",
    "zoo": "zoo.Zoo",
    "zoa": "zoa.method.Zoa",
    "fozo": "fozo.Fozo",
    "eva0": "eva0.Eva0",
    "pea": "pea.method.Pea",
}


FEATURES_ALONE = ("primed", "moments", "none")  # need no class scores


def chosen_layers(
    kind: type[Method], settings: MethodSettings, read: Callable[[], ModelInfo]
) -> tuple[int, ...] | None:
    """What `Engine.open` is to move: the settings' layers, the method's own, None: calibrated.

    A method that moves other layers than calibration chose has a class method
    `layers(info, settings)`.
    """
    if not kind.moves_affines:
        return ()
    own = getattr(kind, "layers", None)
    if settings.layers is not None or own is None:
        return settings.layers
    layers: tuple[int, ...] = own(read(), settings)
    return layers


def default_method(info: ModelInfo, settings: MethodSettings) -> str:
    """The method for a file when none is given: the one that calibration found the best.

    Primed alignment where the file is primed, channel moments where they regained more.
    """
    moments = info.moments if settings.layers is None else None
    gains = moments.gains if moments else {}
    if info.prime is not None and settings.layers in (None, info.prime.layers):
        better = gains.get("moments", 0.0) > gains.get("primed", 0.0)
        return "moments" if better else "primed"
    unscored = moments is not None and bool(info.outputs)  # nothing told what they regain
    return "moments" if unscored or gains.get("moments", 0.0) > 0 else "zotta"


def check_fits(method: str, info: ModelInfo) -> None:
    """Refuse a method that looks at class scores for a model that has none."""
    if info.outputs and method not in FEATURES_ALONE:
        raise ZottaError(
            f"the model gives no class scores, which {method} looks at: run `zotta-edge "
            f"calibrate MODEL --source DIR`, for --method {' or '.join(FEATURES_ALONE)}"
        )


def find(name: str) -> type[Method]:
    """The method of that name."""
    if name not in METHODS:
        raise ZottaError(f"no method is called {name}: there are {', '.join(METHODS)}")
    module, _, kind = METHODS[name].rpartition(".")
    method: type[Method] = getattr(import_module(f"{__package__}.{module}"), kind)
    return method

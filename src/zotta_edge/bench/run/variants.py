"""What is compared: a method with settings of its own, under a name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.methods.registry import METHODS
from zotta_edge.runtime.settings import Settings

PLAIN = "none"  # what every method in the runtime is compared with
ALL = "all"
FP32 = "fp32:"  # before the method of a torch reference
PLAIN_FP32 = f"{FP32}none"  # what the references are compared with


@dataclass(frozen=True)
class Variant:
    name: str
    method: str
    assignments: tuple[str, ...] = ()  # `setting=value` texts

    @property
    def is_reference(self) -> bool:
        return self.method.startswith(FP32)

    @property
    def is_plain(self) -> bool:
        return self.method in (PLAIN, PLAIN_FP32)

    def settings(self, seed: int) -> Settings:
        return Settings().override(self.assignments).replace({"seed": seed})


def parse_variants(
    methods: Sequence[str], variants: Sequence[str], assignments: Sequence[str]
) -> tuple[Variant, ...]:
    """`--methods`, then `--variant NAME=method;setting=value;...`; `--set` holds for them all."""
    names = [name for method in methods for name in (METHODS if method == ALL else [method])]
    asked = [_variant(f"{name}={name}", assignments) for name in dict.fromkeys(names)]
    asked += [_variant(text, assignments) for text in variants]
    for variant in asked:
        variant.settings(seed=0)  # refuses what is no setting
    every = _with_plain(asked)
    twice = {
        variant.name for variant in every if sum(variant.name == other.name for other in every) > 1
    }
    if twice:
        raise ZottaError(f"two variants are called {sorted(twice)[0]}: give each its own name")
    return every


def _with_plain(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Put plain inference first, even if it was not asked for: gains are relative to it."""
    plain = [variant for variant in variants if variant.method == PLAIN] or [Variant(PLAIN, PLAIN)]
    if any(variant.is_reference for variant in variants):
        in_fp32 = [variant for variant in variants if variant.method == PLAIN_FP32]
        plain += in_fp32 or [Variant("none (fp32)", PLAIN_FP32)]
    return (*plain, *(variant for variant in variants if not variant.is_plain))


def _variant(text: str, assignments: Sequence[str]) -> Variant:
    name, sign, rest = (part.strip() for part in text.partition("="))
    method, *own = (part.strip() for part in rest.split(";"))
    if not (name and sign and method):
        raise ZottaError(
            f"cannot read the variant {text!r}: expected NAME=method;setting=value;..."
        )
    return Variant(name, _method(method), (*assignments, *filter(None, own)))


def _method(name: str) -> str:
    """A method of the runtime, or else a torch reference, by name."""
    if name in METHODS:
        return name
    known = _references()
    if name.removeprefix(FP32) in known:
        return f"{FP32}{name.removeprefix(FP32)}"
    there = [*METHODS, *(name for name in known if name not in METHODS)]
    raise ZottaError(f"no method is called {name}: there are {', '.join(there)}")


def _references() -> Mapping[str, str]:
    """Methods that need back-propagation, where torch is installed."""
    try:
        from zotta_edge.bench.references import REFERENCES
    except ImportError:
        return {}
    return REFERENCES

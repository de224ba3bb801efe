"""The order in which a stream's domains and classes arrive.

    reset             each corruption is a stream of its own, met by a fresh model
    continual         the corruptions one after another, and no reset between them
    mixed             all corruptions shuffled together
    label-shift       as reset, but one class after another
    correlated        as continual, but one class after another within each corruption
    mixed-correlated  as mixed, but one class after another
    gradual           as continual, but each corruption comes and goes: severity 1, 2, ... 2, 1
    single            as reset, but one image at a time
    recurring         as continual, and every corruption comes back twice
    clean             the images as they are: does adaptation do harm where there is no shift?

Every stream is seen once, each image in one of its corruptions' severities; the seed decides its
order. `ALIASES` are the names that the toolkit mariodoebler/test-time-adaptation has for the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from zotta_edge.bench.data.datasets import CLEAN, Numbers
from zotta_edge.errors import ZottaError

VISITS = 3  # of each domain in `recurring`
WORST = 5  # severity

ALIASES = {
    "reset_each_shift": "reset",
    "mixed_domains": "mixed",
    "reset_each_shift_correlated": "label-shift",
    "mixed_domains_correlated": "mixed-correlated",
}

LabelsOf = Callable[[str], Numbers]  # domain -> class of each of its images


@dataclass(frozen=True)
class Stream:
    """Samples in order of arrival, for one model that starts from its source."""

    name: str
    domains: tuple[str, ...]  # a name comes again where `severities` tell its domains apart
    domain: Numbers  # of each sample, an index into `domains`
    row: Numbers  # of each sample, among its domain's images
    blended: bool = False  # whether a batch may hold several domains
    severities: tuple[int, ...] = ()  # of the domains; none: the run's own

    def shown(self, severity: int) -> list[tuple[str, int]]:
        """Name and severity of each domain in a run of the given severity."""
        return list(
            zip(self.domains, self.severities or len(self.domains) * (severity,), strict=True)
        )

    def __len__(self) -> int:
        return len(self.row)

    def batches(self, size: int) -> Iterator[slice]:
        """Batches end where a domain does, unless domains are blended."""
        changes = [] if self.blended else (np.flatnonzero(np.diff(self.domain)) + 1).tolist()
        edges = [0, *changes, len(self)]
        for first, last in zip(edges, edges[1:], strict=False):
            for start in range(first, last, size):
                yield slice(start, min(start + size, last))


def reset(domains: Sequence[str], labels: LabelsOf, seed: int) -> list[Stream]:
    return [_visits(name, [(name, np.arange(len(labels(name))))]) for name in domains]


def continual(domains: Sequence[str], labels: LabelsOf, seed: int) -> list[Stream]:
    return [_visits("continual", [(name, np.arange(len(labels(name)))) for name in domains])]


def mixed(domains: Sequence[str], labels: LabelsOf, seed: int) -> list[Stream]:
    (whole,) = continual(domains, labels, seed)
    order = np.random.default_rng([seed, 1]).permutation(len(whole))
    return [Stream("mixed", whole.domains, whole.domain[order], whole.row[order], blended=True)]


def label_shift(domains: Sequence[str], labels: LabelsOf, seed: int) -> list[Stream]:
    return [_visits(name, [(name, _by_class(labels(name), seed))]) for name in domains]


def correlated(domains: Sequence[str], labels: LabelsOf, seed: int) -> list[Stream]:
    visits = [(name, _by_class(labels(name), seed)) for name in domains]
    return [_visits("correlated", visits)]


def mixed_correlated(domains: Sequence[str], labels: LabelsOf, seed: int) -> list[Stream]:
    (whole,) = mixed(domains, labels, seed)
    own = [labels(name) for name in whole.domains]
    classes = [own[domain][row] for domain, row in zip(whole.domain, whole.row, strict=True)]
    order = _by_class(np.array(classes, np.intp), seed)
    return [
        replace(whole, name="mixed-correlated", domain=whole.domain[order], row=whole.row[order])
    ]


def gradual(
    domains: Sequence[str], labels: LabelsOf, seed: int, severity: int = WORST
) -> list[Stream]:
    slope = [*range(1, severity), *range(severity, 0, -1)]
    visits = [
        (name, rows, step)
        for name in domains
        for step, rows in zip(
            slope, np.array_split(np.arange(len(labels(name))), len(slope)), strict=True
        )
    ]
    places = list(dict.fromkeys((name, step) for name, _, step in visits))
    return [
        Stream(
            "gradual",
            tuple(name for name, _ in places),
            np.concatenate(
                [np.full(len(rows), places.index((name, step))) for name, rows, step in visits]
            ),
            np.concatenate([rows for _, rows, _ in visits]),
            severities=tuple(step for _, step in places),
        )
    ]


def recurring(domains: Sequence[str], labels: LabelsOf, seed: int) -> list[Stream]:
    parts = {name: np.array_split(np.arange(len(labels(name))), VISITS) for name in domains}
    visits = [(name, parts[name][visit]) for visit in range(VISITS) for name in domains]
    return [_visits("recurring", visits)]


def clean(domains: Sequence[str], labels: LabelsOf, seed: int) -> list[Stream]:
    return reset([CLEAN], labels, seed)


SCENARIOS: dict[str, Callable[[Sequence[str], LabelsOf, int], list[Stream]]] = {
    "reset": reset,
    "continual": continual,
    "mixed": mixed,
    "label-shift": label_shift,
    "correlated": correlated,
    "mixed-correlated": mixed_correlated,
    "gradual": gradual,
    "single": reset,
    "recurring": recurring,
    "clean": clean,
}


def streams(
    scenario: str, domains: Sequence[str], labels: LabelsOf, seed: int, severity: int
) -> list[Stream]:
    """The streams of a scenario; only `gradual` asks for the severity, its worst."""
    if scenario == "gradual":
        return gradual(domains, labels, seed, severity)
    return SCENARIOS[scenario](domains, labels, seed)


def severities(scenario: str, asked: int) -> Sequence[int]:
    """Those that a scenario shows in a run of the given severity."""
    return range(1, asked + 1) if scenario == "gradual" else (asked,)


def check_scenario(name: str) -> str:
    name = ALIASES.get(name, name)
    if name not in SCENARIOS:
        raise ZottaError(f"no scenario is called {name}: there are {', '.join(SCENARIOS)}")
    return name


def batch_size(scenario: str, asked: int) -> int:
    return 1 if scenario == "single" else asked


def _by_class(labels: Numbers, seed: int) -> Numbers:
    """One class after another, the classes in an order of the seed's."""
    place = np.random.default_rng([seed, 2]).permutation(labels.max(initial=0) + 1)
    return np.argsort(place[labels], kind="stable")


def _visits(name: str, visits: Sequence[tuple[str, NDArray[np.intp]]]) -> Stream:
    domains = tuple(dict.fromkeys(domain for domain, _ in visits))
    return Stream(
        name,
        domains,
        np.concatenate([np.full(len(rows), domains.index(domain)) for domain, rows in visits]),
        np.concatenate([rows for _, rows in visits]),
    )

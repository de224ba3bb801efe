"""The order in which a stream's domains and classes arrive.

    reset        each corruption is a stream of its own, met by a fresh model
    continual    the corruptions one after another, and no reset between them
    mixed        all corruptions shuffled together
    label-shift  as reset, but one class after another
    single       as reset, but one image at a time
    recurring    as continual, and every corruption comes back twice
    clean        the images as they are: does adaptation do harm where there is no shift?

Every stream is seen once; the seed decides its order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zotta_edge.bench.data.datasets import CLEAN, Numbers
from zotta_edge.errors import ZottaError

VISITS = 3  # of each domain in `recurring`

LabelsOf = Callable[[str], Numbers]  # domain -> class of each of its images


@dataclass(frozen=True)
class Stream:
    """Samples in order of arrival, for one model that starts from its source."""

    name: str
    domains: tuple[str, ...]
    domain: Numbers  # of each sample, an index into `domains`
    row: Numbers  # of each sample, among its domain's images
    blended: bool = False  # whether a batch may hold several domains

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
    def by_class(name: str) -> Numbers:
        own = labels(name)
        place = np.random.default_rng([seed, 2]).permutation(own.max(initial=0) + 1)
        return np.argsort(place[own], kind="stable")

    return [_visits(name, [(name, by_class(name))]) for name in domains]


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
    "single": reset,
    "recurring": recurring,
    "clean": clean,
}


def check_scenario(name: str) -> str:
    if name not in SCENARIOS:
        raise ZottaError(f"no scenario is called {name}: there are {', '.join(SCENARIOS)}")
    return name


def batch_size(scenario: str, asked: int) -> int:
    return 1 if scenario == "single" else asked


def _visits(name: str, visits: Sequence[tuple[str, NDArray[np.intp]]]) -> Stream:
    domains = tuple(dict.fromkeys(domain for domain, _ in visits))
    return Stream(
        name,
        domains,
        np.concatenate([np.full(len(rows), domains.index(domain)) for domain, rows in visits]),
        np.concatenate([rows for _, rows in visits]),
    )

"""What a run will do, tried out on a few images before hours are spent on it."""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zotta_edge.bench.run.conditions import Condition, Model
from zotta_edge.bench.run.scratch import Scratch, domains_of
from zotta_edge.bench.run.subjects import Spec
from zotta_edge.bench.run.trial import PLAIN_EVERY
from zotta_edge.errors import ZottaError
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.io.preprocessing import as_batch

_TRIED = 8  # images
_START = 1.5  # seconds that a process takes to be ready


@dataclass(frozen=True)
class Cost:
    """What a method costs on a model, or why it does not fit it."""

    passes: float = 0.0
    seconds: float = 0.0  # an image
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    conditions: list[Condition]  # those that can be run
    costs: dict[tuple[str, str], Cost]  # by model and variant; of what is left to do

    def skipped(self) -> list[str]:
        return [
            f"{variant} on {model}: {cost.reason}"
            for (model, variant), cost in self.costs.items()
            if cost.reason
        ]

    def seconds(self, conditions: Sequence[Condition], jobs: int) -> float:
        """How long these will take, at most: a method may adapt on fewer batches."""
        return sum(self._seconds(condition) for condition in conditions) / jobs

    def _seconds(self, condition: Condition) -> float:
        cost = self.costs[condition.model.name, condition.variant.name]
        plain = cost.seconds / max(cost.passes, 1.0) / PLAIN_EVERY
        return _START + len(condition.stream) * (
            cost.seconds + plain * (not condition.variant.is_plain)
        )


def make_plan(
    conditions: Sequence[Condition],
    is_done: Callable[[Condition], bool],
    scratch: Scratch,
    spec: Callable[[Condition], Spec],
    optional: bool,
) -> Plan:
    """Try each pending method; one that fits no model is an error unless `optional`."""
    costs: dict[tuple[str, str], Cost] = {}
    for condition in conditions:
        if (condition.model.name, condition.variant.name) not in costs and not is_done(condition):
            costs[condition.model.name, condition.variant.name] = _try(
                condition, scratch, spec(condition)
            )
    _check_fit(conditions, costs, optional)
    misfits = {key for key, cost in costs.items() if cost.reason}
    return Plan([c for c in conditions if (c.model.name, c.variant.name) not in misfits], costs)


def _check_fit(
    conditions: Sequence[Condition], costs: Mapping[tuple[str, str], Cost], optional: bool
) -> None:
    for variant in dict.fromkeys(condition.variant for condition in conditions):
        names = {condition.model.name for condition in conditions if condition.variant == variant}
        reasons = [
            costs[name, variant.name].reason for name in names if (name, variant.name) in costs
        ]
        if len(reasons) == len(names) and all(reasons) and not optional:
            raise ZottaError(f"{variant.name} does not fit: {reasons[0]}")


def _try(condition: Condition, scratch: Scratch, spec: Spec) -> Cost:
    """Measure a method on the first images of the stream, adapting on every batch."""
    images = as_batch(_first_images(condition, scratch), condition.model.info.preprocessing)
    try:
        subject, _ = replace(spec, settings=dict(spec.settings) | {"always": True}).open()
        subject.predict_prepared(images, adapt=False)
        passes, started = subject.passes, time.perf_counter()
        subject.predict_prepared(images)
    except ZottaError as error:
        return Cost(reason=str(error).replace(spec.model, condition.model.path.name))
    seconds = time.perf_counter() - started
    return Cost((subject.passes - passes) / len(images), seconds / len(images))


def _first_images(condition: Condition, scratch: Scratch) -> list[Image]:
    stream = condition.stream
    domain = domains_of(condition)[stream.domain[0]]
    return scratch.sample(domain, [int(row) for row in stream.row[:_TRIED]])


def copied(source: Path, folder: Path, name: str) -> Path:
    """The model under another name.

    Cuts are cached beside a model, a few for each name: every method gets a name of its own. The
    user's folder stays as it is, and a model that is replaced meanwhile changes nothing here.
    """
    target = folder / name
    if not target.exists():
        try:
            os.link(source.resolve(), target)  # a link's own target may be relative to it
        except OSError:
            shutil.copy(source, target)
    return target


def check_models(models: Sequence[Model]) -> None:
    names = [model.name for model in models]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ZottaError(f"two models are called {twice[0]}: rename one of the files")

"""A whole run: checks, the plan, the conditions, and what they come to."""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zotta_edge.bench.data.datasets import Images
from zotta_edge.bench.report.html import write_report
from zotta_edge.bench.report.results import (
    Protocol,
    Summary,
    read_outcomes,
    summarize,
    write_csv,
    write_json,
)
from zotta_edge.bench.report.tables import table, tables
from zotta_edge.bench.run.conditions import Condition, Request, check_data, grid
from zotta_edge.bench.run.plan import Plan, copied, make_plan
from zotta_edge.bench.run.runner import CONDITIONS, SCRATCH, Runner, check_folder
from zotta_edge.bench.run.scratch import Scratch, check_space
from zotta_edge.bench.run.subjects import Spec
from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing
from zotta_edge.progress import Progress, duration
from zotta_edge.runtime.state.lock import claim
from zotta_edge.sessions import usable_cores


@dataclass(frozen=True)
class Execution:
    """Where and how a request is run."""

    output: Path
    jobs: int
    record: Mapping[str, Any]  # command and CPU, for every number's sake
    conditions: Path | None = None  # folder of their results, where runs share one
    optional: bool = False  # whether a method that fits no model is skipped
    dry_run: bool = False
    shared: bool = False  # conditions share a process: quick, and without memory

    @property
    def threads(self) -> int:
        return max(1, usable_cores() // self.jobs)


def bench(request: Request, how: Execution) -> dict[Protocol, list[Summary]]:
    """Run a request, or what is left of it, and write its results; a dry run gives nothing."""
    check_data(request)
    conditions = grid(request)
    with _workplace(how, conditions) as scratch:

        def spec(condition: Condition) -> Spec:
            return _spec(condition, scratch.folder, how.threads)

        kept = how.conditions or how.output / CONDITIONS
        runner = Runner(how.output, kept, how.jobs, how.threads, spec, how.record, how.shared)
        left = runner.todo(conditions)
        check_readable(left)
        plan = make_plan(conditions, runner.is_done, scratch, spec, how.optional)
        print(_announcement(request, plan, runner), file=sys.stderr)
        if how.dry_run:
            return {}
        errors = _run(plan, runner)
    summaries = write_results(request, plan, runner)
    if errors:
        raise ZottaError(f"{len(errors)} conditions failed, the first: {errors[0]}")
    return summaries


@contextmanager
def _workplace(how: Execution, conditions: Sequence[Condition]) -> Iterator[Scratch]:
    """A scratch folder that is locked for this run and removed after it; a temporary one if dry."""
    if how.dry_run:
        with tempfile.TemporaryDirectory() as elsewhere:
            yield Scratch(Path(elsewhere), how.threads)
        return
    for needed in (how.output, how.conditions or how.output / CONDITIONS):
        check_folder(needed)
    check_space(how.output, conditions)
    folder = how.output / SCRATCH
    with ExitStack() as stack:
        try:
            stack.enter_context(claim(folder))
        except ZottaError as error:
            raise ZottaError(
                f"another run writes to {how.output}: give another --output"
            ) from error
        folder.mkdir(exist_ok=True)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Scratch(folder, how.threads)


def _spec(condition: Condition, folder: Path, threads: int) -> Spec:
    model, settings = condition.model, condition.variant.settings(condition.seed)
    layers = "-".join(map(str, settings.layers or ("calibrated",)))
    method = condition.variant.method.replace(":", "-")
    name = f"{model.name}-{model.fingerprint[:8]}-{method}-{layers}.onnx"
    path = copied(model.path, folder, name)
    return Spec(str(path), condition.variant.method, settings.to_dict(), threads, condition.origin)


def check_readable(conditions: Sequence[Condition]) -> None:
    """Decode every image file that the run needs, so that a damaged one is an error now."""
    wanted: dict[tuple[str, int], Images] = {}
    for condition in conditions:
        for name, severity in condition.shown:
            images = condition.draw.data.images(name, severity)
            if images.are_files:
                wanted |= {(images.identity, int(i)): images for i in condition.draw.of(images)}
    with Progress("checking images", len(wanted)) as progress, ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda item: item[1].read(item[0][1]), wanted.items()):
            progress.advance()


def _announcement(request: Request, plan: Plan, runner: Runner) -> str:
    left = runner.todo(plan.conditions)
    lines = [f"skipped: {reason}" for reason in plan.skipped()]
    if request.data.among:
        count = len(request.data.among)
        lines.append(f"answers are taken among the {count} classes of {request.data.name}")
    if plan.costs:
        lines.append(f"{'model':<20} {'method':<16} {'passes':>6} {'ms an image':>12}")
    lines += [
        f"{model:<20} {variant:<16} {cost.passes:>6.1f} {1000 * cost.seconds:>12.1f}"
        for (model, variant), cost in plan.costs.items()
        if not cost.reason
    ]
    done = len(plan.conditions) - len(left)
    lines.append(
        f"{len(left)} conditions to run{f', {done} done already' if done else ''}; "
        f"{runner.jobs} at a time with {runner.threads} threads each, "
        f"about {duration(plan.seconds(left, runner.jobs))}"
    )
    return "\n".join(lines)


def _run(plan: Plan, runner: Runner) -> list[str]:
    left = len(runner.todo(plan.conditions))
    with Progress("bench", left) as progress:

        def report(condition: Condition, error: str | None) -> None:
            progress.advance(note=condition.title)
            if error or not sys.stderr.isatty():
                state = f"failed: {error}" if error else _accuracy(runner.result(condition))
                print(f"{progress.done}/{left} {condition.title}: {state}", file=sys.stderr)

        try:
            return runner.run(plan.conditions, report)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"{progress.done} of {left} conditions are done, the same command goes on"
            ) from None


def _accuracy(file: Path) -> str:
    correct = json.loads(file.read_text())["correct"]
    return f"{100 * correct.count('1') / len(correct):.1f} %"


def write_results(request: Request, plan: Plan, runner: Runner) -> dict[Protocol, list[Summary]]:
    """Everything that is derived from the conditions' files."""
    files = [runner.result(condition) for condition in plan.conditions]
    summaries = summarize(read_outcomes(file for file in files if file.exists()))
    about = dict(runner.record) | {"data": request.data.name, "skipped": plan.skipped()}
    write_json(runner.output / "results.json", summaries, about)
    write_csv(runner.output / "results.csv", summaries)
    write_report(runner.output / "report.html", summaries, about)
    markdown = [table(protocol, own).markdown() for protocol, own in summaries.items()]
    with replacing(runner.output / "table.md") as temporary:
        text = "\n\n".join([f"    {runner.record['command']}", *markdown]) + "\n"
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    return summaries


def as_text(summaries: Mapping[Protocol, Sequence[Summary]]) -> str:
    return "\n\n".join(
        each.text() for protocol, own in summaries.items() for each in tables(protocol, own)
    )

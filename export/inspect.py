"""The contents of a model file as text and JSON; of other ONNX files, whether they can adapt."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx

from zotta_edge.decoder_format import KIND
from zotta_edge.decoder_format import from_metadata as decoder_from_metadata
from zotta_edge.errors import ZottaError
from zotta_edge.export.decoders.from_onnx import outline
from zotta_edge.export.decoders.inspect import (
    decoder_summary,
    describe_decoder,
    explain_decoder,
    norms_table,
)
from zotta_edge.export.norms.expose import expose_norms
from zotta_edge.export.preprocessing import told
from zotta_edge.export.sources.classifier import Say, as_classifier
from zotta_edge.export.sources.obstacles import UnsuitableError, one_line_errors
from zotta_edge.export.sources.source import read_onnx
from zotta_edge.files import check_file
from zotta_edge.format import STATISTICS, ModelInfo, from_metadata
from zotta_edge.graph.nodes import opset

_CHECKS = {
    "source_difference": "largest logit difference of the adaptable fp32 graph from its source",
    "per_sample_difference": "per-sample affines against single-sample runs",
    "cosine": "logits against fp32, cosine",
    "top1_agreement": "logits against fp32, top-1 agreement",
    "cosine_perturbed": "the same at perturbed affines, cosine",
    "top1_agreement_perturbed": "the same at perturbed affines, top-1 agreement",
}


def describe(path: Path, say: Say = lambda message: None) -> dict[str, Any]:
    """Everything `zotta-edge inspect --json` says; never fails on a readable ONNX file.

    `say` is told what is being done, which takes a while on a large network.

    >>> from importlib.resources import files
    >>> path = Path(str(files("zotta_edge.models.embedded") / "digits_vit_int8.onnx"))
    >>> described = describe(path)
    >>> described["exported"], described["precision"], described["classes"]
    (True, 'int8', 10)
    """
    check_file(path)
    decoder = outline(path)
    model = decoder or read_onnx(path)
    metadata = _metadata(model)
    common = {"file": str(path), "bytes": path.stat().st_size, "opset": opset(model)}
    if metadata.get("zotta.kind") == KIND:
        described = describe_decoder(path, decoder_from_metadata(metadata, path))
        return common | {"exported": True} | described
    if "zotta.format" in metadata:
        return common | {"exported": True} | _describe_info(from_metadata(metadata, path))
    return common | {"exported": False} | _explain(decoder, model, path, say)


def _metadata(model: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props}


def summary(path: Path, info: ModelInfo) -> str:
    """The file in one paragraph."""
    p = info.preprocessing
    lines = [
        f"{path}: {info.recipe.precision}, {path.stat().st_size / 1e6:.2f} MB, "
        + (f"outputs {', '.join(info.outputs)}" if info.outputs else f"{info.classes} classes"),
        f"input     {p.channels} x {p.height} x {p.width} {p.layout}, "
        f"mean {_numbers(p.mean)}, std {_numbers(p.std)}"
        + (f", resize {p.resize}" if p.resize else "")
        + f", {p.interpolation}"
        + (", BGR" if p.order == "BGR" else "")
        + (" (assumed: give --preprocessing at export)" if p.assumed and not info.trial else ""),
        *([told(info.trial)] if info.trial else []),
        f"recipe    {info.recipe.scheme}, for {info.recipe.target}; checked on "
        f"{info.recipe.machine}",
        f"layers    {len(info.layers)} with {len(info.norms)} "
        f"{'inserted affines' if any(norm.inserted for norm in info.norms) else 'norms'}, "
        f"{sum(layer.parameters for layer in info.layers)} adaptable parameters",
    ]
    return "\n".join(lines)


def layers_table(info: ModelInfo) -> str:
    """One line a layer: norms, parameters, purity, and whether it is chosen."""
    calibration = info.calibration
    width = max(len(layer.name) for layer in info.layers)
    rows = [f"{'':>3}  {'layer':<{width}}  norms  parameters  channels  purity  chosen"]
    for index, layer in enumerate(info.layers):
        purity = f"{calibration.purity[index]:.3f}" if calibration and calibration.purity else "-"
        rows.append(
            f"{index:>3}  {layer.name:<{width}}  {len(layer.norms):>5}  {layer.parameters:>10}  "
            f"{layer.channels:>8}  {purity:>6}  {'*' if index in info.chosen else '':>6}"
        )
    if calibration is None:
        rows.append("not calibrated: run `zotta-edge calibrate MODEL --source DIR` before adapting")
    else:
        rows.append(
            f"calibrated on {calibration.samples} images, rule {calibration.rule}, "
            f"tau {calibration.tau:g}, seed {calibration.seed}, {calibration.seconds:.1f} s"
        )
    if info.prime:
        rows.append(
            f"primed for layers {', '.join(map(str, info.prime.layers))} on {info.prime.images} "
            f"images, rank {info.prime.features.shape[1]}, {info.prime.energy:.0%} of the Jacobian"
        )
    return "\n".join(rows)


def checks_table(info: ModelInfo) -> str:
    width = max((len(text) for text in _CHECKS.values()), default=0)
    return "\n".join(
        f"  {_CHECKS.get(name, name):<{width}}  {value:.4g}" for name, value in info.checks.items()
    )


def for_people(path: Path, described: dict[str, Any]) -> str:
    """The text of `zotta-edge inspect`, from what `describe` says."""
    if described.get("kind") == KIND:
        return "\n".join((decoder_summary(described), norms_table(described)))
    if described["exported"]:
        info = from_metadata(_metadata(read_onnx(path)), path)
        return "\n".join((summary(path, info), checks_table(info), layers_table(info)))
    size = described["bytes"] / 1e6
    head = f"{path}: plain ONNX file, opset {described['opset']}, {size:.2f} MB"
    if described["adaptable"]:
        return f"{head}\ncan be adapted: {described['reason']}"
    return "\n- ".join((f"{head}\ncannot be adapted as it is:", *described["obstacles"]))


def _describe_info(info: ModelInfo) -> dict[str, Any]:
    calibration = info.calibration
    return {
        "precision": info.recipe.precision,
        "recipe": vars(info.recipe),
        "preprocessing": vars(info.preprocessing),
        "trial": info.trial and asdict(info.trial),
        "classes": info.classes,
        "outputs": list(info.answers),
        "labels": list(info.labels),
        "checks": dict(info.checks),
        "layers": [
            {
                "index": index,
                "name": layer.name,
                "kind": layer.kind,
                "channels": layer.channels,
                "parameters": layer.parameters,
                "norms": [vars(norm) for norm in layer.norms],
                "purity": calibration.purity[index] if calibration and calibration.purity else None,
                "chosen": index in info.chosen,
            }
            for index, layer in enumerate(info.layers)
        ],
        "calibration": calibration
        and {k: v for k, v in vars(calibration).items() if k not in STATISTICS},
    }


def _explain(
    decoder: onnx.ModelProto | None, model: onnx.ModelProto, path: Path, say: Say
) -> dict[str, Any]:
    try:
        with one_line_errors(str(path)):
            if decoder:
                return _promising(explain_decoder(path), "norms behind attention found", path)
            norms = expose_norms(as_classifier(model, say=say))
    except UnsuitableError as error:
        return _hopeless(str(error), error.obstacles)
    except ZottaError as error:
        return _hopeless(str(error), [str(error)])
    found = "affines can be inserted" if norms[0].norm.inserted else "norms found"
    return _promising(len(norms), found, path)


def _promising(norms: int, found: str, path: Path) -> dict[str, Any]:
    way = f"make an adaptable file with `zotta-edge export {path} -o adaptable.onnx`"
    return {"adaptable": True, "norms": norms, "reason": f"{norms} {found}; {way}"}


def _hopeless(reason: str, obstacles: list[str]) -> dict[str, Any]:
    return {"adaptable": False, "norms": 0, "reason": reason, "obstacles": obstacles}


def _numbers(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)

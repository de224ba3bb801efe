"""The contents of a model file as text and JSON; of other ONNX files, whether they can adapt."""

from pathlib import Path
from typing import Any

import onnx

from zotta_edge.errors import ZottaError
from zotta_edge.export.norms.expose import expose_norms
from zotta_edge.export.sources.classifier import as_classifier
from zotta_edge.export.sources.source import read_onnx
from zotta_edge.format import ModelInfo, from_metadata
from zotta_edge.graph.nodes import opset

_CHECKS = {
    "source_difference": "largest logit difference of the adaptable fp32 graph from its source",
    "per_sample_difference": "per-sample affines against single-sample runs",
    "cosine": "logits against fp32, cosine",
    "top1_agreement": "logits against fp32, top-1 agreement",
    "cosine_perturbed": "the same at perturbed affines, cosine",
    "top1_agreement_perturbed": "the same at perturbed affines, top-1 agreement",
}


def describe(path: Path) -> dict[str, Any]:
    """Everything `zotta-edge inspect --json` says; never fails on a readable ONNX file.

    >>> from importlib.resources import files
    >>> path = Path(str(files("zotta_edge.models.embedded") / "digits_vit_int8.onnx"))
    >>> described = describe(path)
    >>> described["exported"], described["precision"], described["classes"]
    (True, 'int8', 10)
    """
    model = read_onnx(path)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    common = {"file": str(path), "bytes": path.stat().st_size, "opset": opset(model)}
    if "zotta.format" in metadata:
        return common | {"exported": True} | _describe_info(from_metadata(metadata, path))
    return common | {"exported": False} | _explain(model, path)


def summary(path: Path, info: ModelInfo) -> str:
    """The file in one paragraph."""
    p = info.preprocessing
    lines = [
        f"{path}: {info.recipe.precision}, {path.stat().st_size / 1e6:.2f} MB, "
        f"{info.classes} classes",
        f"input     {p.channels} x {p.height} x {p.width} {p.layout}, "
        f"mean {_numbers(p.mean)}, std {_numbers(p.std)}"
        + (f", resize {p.resize}" if p.resize else "")
        + f", {p.interpolation}"
        + (" (assumed: give --preprocessing at export)" if p.assumed else ""),
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


def for_people(path: Path) -> str:
    """The text of `zotta-edge inspect`."""
    model = read_onnx(path)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    if "zotta.format" in metadata:
        info = from_metadata(metadata, path)
        return "\n".join((summary(path, info), checks_table(info), layers_table(info)))
    explained = _explain(model, path)
    head = f"{path}: plain ONNX file, opset {opset(model)}, {path.stat().st_size / 1e6:.2f} MB"
    return f"{head}\n{'can' if explained['adaptable'] else 'cannot'} be adapted: " + str(
        explained["reason"]
    )


def _describe_info(info: ModelInfo) -> dict[str, Any]:
    calibration = info.calibration
    return {
        "precision": info.recipe.precision,
        "recipe": vars(info.recipe),
        "preprocessing": vars(info.preprocessing),
        "classes": info.classes,
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
        and {k: v for k, v in vars(calibration).items() if k not in ("mean", "std")},
    }


def _explain(model: onnx.ModelProto, path: Path) -> dict[str, Any]:
    try:
        norms = expose_norms(as_classifier(model))
    except ZottaError as error:
        return {"adaptable": False, "norms": 0, "reason": str(error)}
    return {
        "adaptable": True,
        "norms": len(norms),
        "reason": f"{len(norms)} "
        f"{'affines can be inserted' if norms[0].norm.inserted else 'norms found'}; "
        f"make an adaptable file with `zotta-edge export {path} -o adaptable.onnx`",
    }


def _numbers(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)

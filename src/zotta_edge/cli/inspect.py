"""`zotta-edge inspect`"""

import argparse
import json
from pathlib import Path

HELP = """Show what a model file contains, or whether an ONNX file can be adapted

For a file made by zotta-edge: layers, affines, precision, recipe, checks, calibration.
For any other ONNX file: whether it can be adapted, and why or why not.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--json", action="store_true", help="everything, for machines")


def run(args: argparse.Namespace) -> int:
    from zotta_edge.export.inspect import describe, for_people

    print(json.dumps(describe(args.model), indent=2) if args.json else for_people(args.model))
    return 0

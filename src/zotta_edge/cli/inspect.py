"""`zotta-edge inspect`"""

import argparse
import json
import sys
from pathlib import Path

HELP = """Show what a model file contains, or whether an ONNX file can be adapted

For a file made by zotta-edge: layers, affines, precision, recipe, checks, calibration; of a
decoder its context, template, image and the norms whose scales can be moved.
For any other ONNX file: whether it can be adapted; if not, every obstacle with the way out, and
exit code 1.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--json", action="store_true", help="everything, for machines")


def run(args: argparse.Namespace) -> int:
    from zotta_edge.export.inspect import describe, for_people

    described = describe(args.model, say=_say)
    print(json.dumps(described, indent=2) if args.json else for_people(args.model, described))
    return 0 if described.get("adaptable", True) else 1


def _say(message: str) -> None:
    print(message, file=sys.stderr)

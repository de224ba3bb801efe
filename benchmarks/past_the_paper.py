"""What primed alignment gains and costs, against the paper's method, back-propagation and rivals.

python benchmarks/past_the_paper.py cost --output out/ \
    --model deit_int8.onnx --data imagenet-val/ --labels labels.csv --rows :1000 --images 1000
python benchmarks/past_the_paper.py references --output out/ ... \
    --reference deit_tiny.pth --source photos/

Each study is one run of `zotta-edge bench`, which gets all the other options: severity 5, batch 64,
the 15 corruptions and a reset before each unless the study is about just that. Studies may share an
--output: what one has measured, another need not.
"""

import argparse
import sys
from collections.abc import Sequence

from zotta_edge.__main__ import main as zotta_edge

OURS = ["--methods", "none,primed"]
TWICE = ["--variant", "primed-2x=primed;budget=2.1"]
UNFILTERED = ["--variant", "unfiltered=primed;filters=false"]
PAPER = ["--variant", "zotta=zotta;always=true"]  # k = 5, every batch

STUDIES = {
    "cost": [*OURS, *TWICE, *UNFILTERED, *PAPER],
    "references": ["--methods", "none,primed,backprop,tent,sar,eata"],
    "rivals": ["--methods", "none,primed,neo,t3a,lame,zoa,zoo,foa", *TWICE, *PAPER],
    "batches": [*OURS, "--batch-size", "64,4,1"],
    "continual": [*OURS, "--scenario", "continual", "--corruptions", "all,clean"],
    "order": [*OURS, "--scenario", "mixed,recurring,label-shift"],
    "clean": [*OURS, *TWICE, "--scenario", "clean"],
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=STUDIES)
    args, rest = parser.parse_known_args(arguments)
    return zotta_edge(["bench", *STUDIES[args.study], *rest])


if __name__ == "__main__":
    sys.exit(main())

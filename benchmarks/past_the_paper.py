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
PAIRS = [
    part for k in (1, 2, 5, 14) for part in ("--variant", f"zotta-k{k}=zotta;always=true;pairs={k}")
]
FOA = [part for k in (10, 28) for part in ("--variant", f"foa-K{k}=foa;foa_candidates={k}")]
PEERS = ["--methods", "none,primed,neo,t3a,lame,zoa,fozo,eva0"]
PEA = ["--variant", "pea=pea;pea_statistics={statistics}"]
BATCH_NORM = ["--methods", "none,primed,bn_adapt,alpha_bn,leantta,unmix_tns,neo"]
REFERENCES = ["--methods", "none,primed,backprop,tent,sar,eata,roid"]

STUDIES = {
    "cost": [*OURS, *TWICE, *UNFILTERED, *PAPER],
    "references": REFERENCES,
    "rivals": ["--methods", "none,primed,neo,t3a,lame,zoa,zoo,foa", *TWICE, *PAPER],
    "passes": [*OURS, *PAIRS, *FOA, "--variant", "zoo=zoo"],
    "peers": [*PEERS, *PAPER],
    "pea": [*OURS, *PEA],
    "batch-norm": [*BATCH_NORM, "--batch-size", "64,1"],
    "wild": [*OURS, *PAPER, *FOA[:2], "--scenario", "mixed,label-shift,continual,single"],
    "reduction": [
        *("--variant", "mean=zotta;always=true;reduction=mean"),
        *("--variant", "whole=zotta;always=true;reduction=whole"),
        *("--variant", "bare=zotta;always=true;reduction=whole;guard=false"),
    ],
    "batches": [*OURS, "--batch-size", "64,4,1"],
    "continual": [*OURS, "--scenario", "continual", "--corruptions", "all,clean"],
    "order": [*OURS, "--scenario", "mixed,recurring,label-shift"],
    "toolkit": [
        *PEERS,
        *("--scenario", "continual,mixed,correlated,mixed-correlated,gradual"),
    ],
    "clean": [*OURS, *TWICE, "--scenario", "clean"],
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--statistics", default="", help="for pea: `calibrate --token-statistics`")
    args, rest = parser.parse_known_args(arguments)
    study = [part.replace("{statistics}", args.statistics) for part in STUDIES[args.study]]
    return zotta_edge(["bench", *study, *rest])


if __name__ == "__main__":
    sys.exit(main())

"""The machine that will run the model: which 8-bit products its CPU can add up exactly."""

import os
import platform
from pathlib import Path
from typing import Literal, get_args

from zotta_edge.errors import ZottaError

Target = Literal["avx2", "vnni", "arm64"]
TARGETS: tuple[Target, ...] = get_args(Target)

CPUINFO = Path("/proc/cpuinfo")
# Names of the dot-product instructions there: 512-bit, and the VEX form of newer cores.
_VNNI_FLAGS = {"avx512_vnni", "avx_vnni"}
_ARM_MACHINES = {"arm64", "aarch64"}


def resolve_target(name: str) -> Target:
    """The target of `--target`; `auto` is this machine."""
    if name == "auto":
        return detect_target()
    for target in TARGETS:
        if name == target:
            return target
    raise ZottaError(f"unknown target {name}: choose auto, {', '.join(TARGETS)}")


def detect_target() -> Target:
    """This machine; an unknown x86 counts as avx2, which is correct everywhere."""
    if platform.machine().lower() in _ARM_MACHINES:
        return "arm64"
    return "vnni" if _VNNI_FLAGS & cpu_flags() else "avx2"


def describe_machine() -> str:
    """One line for the file's metadata: CPU, cores, and the flags that matter for 8 bits."""
    flags = sorted(cpu_flags() & {*_VNNI_FLAGS, "avx2", "avx512f", "asimddp", "i8mm"})
    model = _cpu_field("model name") or platform.processor() or "unknown CPU"
    cores = f"{os.cpu_count() or 1} cores"
    return ", ".join([model, platform.machine(), cores, " ".join(flags) or "no known flags"])


def cpu_flags() -> set[str]:
    """Instruction sets as Linux lists them; empty on other systems."""
    return set((_cpu_field("flags") or _cpu_field("Features") or "").split())


def _cpu_field(name: str) -> str:
    try:
        lines = CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")

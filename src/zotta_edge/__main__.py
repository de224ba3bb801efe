"""`zotta-edge`: the entry of the command line."""

import argparse
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper

from zotta_edge.errors import ZottaError, visible
from zotta_edge.version import __version__

COMMANDS = ("export", "calibrate", "inspect", "adapt", "generate", "serve", "bench", "corrupt")

_READER_GONE = 128 + 13  # what a shell reports of a program that SIGPIPE ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 success, 1 failure with a one-line error, 2 usage."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads would wait beside the model's
    given = list(sys.argv[1:] if arguments is None else arguments)
    _show_any_text()
    with _ctrl_c() as stopped:
        try:
            return _run(given)
        except KeyboardInterrupt as stop:  # its text says what was kept
            return _interrupted(str(stop))
        except Exception as error:
            if stopped.is_set():  # what libraries make of it: a damaged module, a failed export
                return _interrupted()
            if not isinstance(error, ZottaError | MemoryError | OSError):
                raise
            print(f"zotta-edge: error: {_one_line(error)}", file=sys.stderr)
            return 1


def _run(given: list[str]) -> int:
    try:
        args = parser().parse_args(given)
        args.command = shlex.join(["zotta-edge", *given])  # goes with every number it makes
        return int(args.run(args))
    except BrokenPipeError:  # the reader went away (`| head`): no error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing left to flush
        return _READER_GONE


def _interrupted(kept: str = "") -> int:
    print(": ".join(filter(None, ["zotta-edge: interrupted", kept])), file=sys.stderr)
    return 130


@contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """An event that is set by Ctrl-C, which raises KeyboardInterrupt as ever."""
    stopped = threading.Event()

    def stop(number: int, frame: object) -> None:
        stopped.set()
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    ours = threading.current_thread() is threading.main_thread()
    if not ours or before is not signal.default_int_handler:  # ignored, or another program's
        yield stopped
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zotta-edge",
        description="Quantized image classifiers that keep adapting on the device, "
        "with forward passes only.",
    )
    parser.add_argument("--version", action="version", version=f"zotta-edge {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = import_module(f"zotta_edge.cli.{name}")
        command = commands.add_parser(
            name,
            help=module.HELP.splitlines()[0],
            description=module.HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.configure(command)
        command.set_defaults(run=module.run)
    return parser


def _show_any_text() -> None:
    """A character that the terminal's encoding lacks is shown as its number: no reason to end."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _one_line(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "out of memory: try a smaller --batch-size"
    return visible(" ".join(str(error).split())) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())

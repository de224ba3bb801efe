"""The command line: one module a command, each with `HELP`, `configure(parser)` and `run(args)`.

A command module imports its stage of the pipeline inside `run`, so that `zotta-edge --help` needs
neither torch nor onnxruntime.
"""

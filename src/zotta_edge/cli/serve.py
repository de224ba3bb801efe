"""`zotta-edge serve`"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zotta_edge.errors import ZottaError
from zotta_edge.options import describe
from zotta_edge.runtime.service.config import PREFIX, Config, load

if TYPE_CHECKING:
    from zotta_edge.runtime.adaptive import AdaptiveModel
    from zotta_edge.runtime.generate.model import AdaptiveDecoder

HELP = f"""Serve a model that adapts to the images of its requests

Speaks the Open Inference Protocol (KServe v2), so existing clients work. There is a dashboard at /
and Prometheus metrics at /metrics. Without --model it serves the embedded digits model. A decoder's
file is served by /generate and /generate_stream.

  zotta-edge serve --model vit_int8.onnx --state states/
  curl --data-binary @photo.jpg http://127.0.0.1:8080/v2/models/vit_int8/classify
  zotta-edge serve --model vit_int8.onnx --adapt background --host 0.0.0.0 --token-file token

Every option can also be set in the environment ({PREFIX}BATCH_SIZE=8) or in a TOML file
(batch_size = 8; adaptation settings under [settings]). Flags win over the environment, which wins
over the file.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    for each in describe(Config):
        default = "" if each.default is None else f" (default: {each.default})"
        parser.add_argument(
            f"--{each.name.replace('_', '-')}",
            type=each.kind,
            choices=each.choices or None,
            metavar=None if each.choices else each.metavar or each.name.upper(),
            help=each.about + default,
        )
    parser.add_argument("--config", type=Path, metavar="TOML", help="options from a file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="one setting of adaptation, see --list-settings of `zotta-edge adapt` or, for a "
        "decoder, of `zotta-edge generate`; repeatable",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    file = args.config or os.environ.get(f"{PREFIX}CONFIG")
    config, settings = load(vars(args), os.environ, Path(file) if file else None)
    token = config.read_token()
    try:
        from zotta_edge.runtime.service.http import server
        from zotta_edge.runtime.service.http.app import create_app
        from zotta_edge.runtime.service.observe import logs
    except ModuleNotFoundError as error:
        raise ZottaError(
            f"serve needs {error.name}, which is not installed: pip install 'zotta-edge[serve]'"
        ) from error
    logs.configure(config.log)
    with server.listen(config.host, config.port) as bound:
        path = config.model or _embedded()
        model = _model(path, config, settings, args.set)
        only_local = config.local and token is None  # with one, a TLS proxy may stand in front
        app = create_app(model, path.stem, config, token=token, only_local=only_local)
        server.run(app, bound)
    return 0


def _embedded() -> Path:
    from zotta_edge.models import embedded

    return embedded.MODEL


def _model(
    path: Path, config: Config, settings: dict[str, Any], changes: list[str]
) -> "AdaptiveModel | AdaptiveDecoder":
    from zotta_edge.runtime.adaptive import AdaptiveModel
    from zotta_edge.runtime.generate.model import AdaptiveDecoder
    from zotta_edge.runtime.generate.settings import GenerationSettings
    from zotta_edge.runtime.settings import Settings

    method = "none" if config.adapt == "off" else config.method
    if _is_decoder(path):
        given = GenerationSettings().replace(settings).override(changes)
        name = method or "none"
        return AdaptiveDecoder.load(
            path, given, name, provider=config.provider, threads=config.threads
        )
    chosen = Settings().replace(settings).override(changes)
    options = {} if method is None else {"method": method}
    return AdaptiveModel.load(
        path, chosen, provider=config.provider, threads=config.threads, **options
    )


def _is_decoder(path: Path) -> bool:
    from zotta_edge.decoder_format import KIND
    from zotta_edge.sessions import open_session

    metadata = open_session(path, optimize=False).get_modelmeta().custom_metadata_map
    return bool(metadata.get("zotta.kind") == KIND)

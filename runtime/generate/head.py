"""The head's weights: what one unit of the last hidden state does to every token's logit."""

from zotta_edge.decoder_format import HIDDEN, LOGITS
from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats
from zotta_edge.runtime.generate.engine import DecoderEngine
from zotta_edge.sessions import open_session

_ROWS = 64  # unit vectors at a time


def head_weights(engine: DecoderEngine) -> Floats:
    """W of logits = hidden W + b, [hidden, vocabulary] in float32, whatever the file stores.

    The head is cut out of the file and asked for unit vectors, which 8-bit activations hold
    without rounding.
    """
    import numpy as np

    from zotta_edge.graph.subgraph import build, live, parse

    model = parse(engine.path.read_bytes(), str(engine.path))
    nodes = live(model.graph.node, [LOGITS], [HIDDEN])
    known = {value.name: value for value in model.graph.output}
    try:
        content = build(model, nodes, [HIDDEN], [LOGITS], known).SerializeToString()
        session = open_session(content)
    except (KeyError, ZottaError) as error:
        raise ZottaError(f"the head of {engine.path} cannot be cut out: {error}") from error
    size, vocabulary = engine.info.shape.hidden, engine.info.shape.vocabulary
    weights = np.empty((size, vocabulary), np.float32)
    (offset,) = session.run([LOGITS], {HIDDEN: np.zeros((1, 1, size), np.float32)})
    for start in range(0, size, _ROWS):
        units = np.eye(size, dtype=np.float32)[None, start : start + _ROWS]
        weights[start : start + _ROWS] = session.run([LOGITS], {HIDDEN: units})[0][0] - offset[0, 0]
    return weights

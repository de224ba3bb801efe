"""When another stream has begun."""

from pathlib import Path

import numpy as np
import toy

from zotta_edge.format import Floats
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.methods.primed.stream_watch import StreamWatch
from zotta_edge.runtime.settings import Settings


def test_a_change_right_after_a_switch_of_filters_is_noticed(tmp_path: Path) -> None:
    """All of the batch that a filter was chosen on is known to be of the new stream."""
    engine = Engine.open(toy.build(tmp_path / "toy.onnx"), threads=1)
    watch = StreamWatch(engine.info, engine.chosen, Settings())

    def features(seed: int, shift: float) -> list[Floats]:
        outputs = engine.cone(engine.stem(toy.images(64, seed, shift)), {})
        return list(outputs.features[: min(engine.chosen)])

    new = np.ones(64)
    assert not watch.changed(features(0, 0.0), new)
    watch.begin(features(3, toy.SHIFT), new, 64)
    assert watch.changed(features(4, -toy.SHIFT), new)
    watch.begin(features(3, toy.SHIFT), new, 0)  # some may be of the stream before: wait and see
    assert not watch.changed(features(4, -toy.SHIFT), new)

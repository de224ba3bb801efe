"""No adaptation, to compare with."""

from typing import Any

from zotta_edge.runtime.events import Events
from zotta_edge.runtime.generate.engine import DecoderEngine
from zotta_edge.runtime.generate.methods.contract import Forgetful, Move
from zotta_edge.runtime.generate.prompts import Batch


class Plain(Forgetful):
    """Answers as the source does."""

    def __init__(self, engine: DecoderEngine, settings: Any, events: Events) -> None: ...

    def prepare(self, batch: Batch, limit: int) -> Move:
        return Move()

"""What Qwen2.5-VL-3B in 4 bits would cost on a Jetson-class device; arithmetic, not a measurement.

Sizes are those of the published configuration: 36 blocks, hidden 2048, 16 heads of 128 with 2 keys,
inner size 11008, 151936 tokens, a tied head; a vision tower of 0.67 G parameters. The device is an
Orin-Nano-class board: 102 GB/s of memory, of which 60 % is reached, and 10 tera-operations a second
that a 4-bit product sustains (about a third of its 8-bit peak without sparsity).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Assumed:
    blocks: int = 36
    hidden: int = 2048
    keys: int = 256  # 2 of 128
    inner: int = 11008
    vocabulary: int = 151936
    eyes: float = 0.67e9
    bits: float = 4.5  # a weight and its share of a scale for 32 weights
    bandwidth: float = 0.6 * 102e9
    operations: float = 10e12
    prompt: int = 400  # tokens, most of them an image's
    answer: int = 100
    pairs: int = 5


def block_weights(a: Assumed) -> float:
    return 2 * a.hidden * a.hidden + 2 * a.hidden * a.keys + 3 * a.hidden * a.inner


def table(a: Assumed | None = None) -> str:
    """Markdown: plain generation, and ZOTTA on every question."""
    a = a or Assumed()
    decoder = a.blocks * block_weights(a) + a.vocabulary * a.hidden
    weights = (decoder + a.eyes) * a.bits / 8
    cache = 2 * a.blocks * a.keys * 4 * (a.prompt + a.answer)  # one row, float32
    rows = 2 * a.pairs
    logits = rows * a.answer * a.vocabulary * 4
    token = decoder * a.bits / 8 / a.bandwidth
    read = 2 * (a.blocks * block_weights(a)) / a.operations  # a token of a long pass, without head
    head = 2 * a.vocabulary * a.hidden / a.operations
    prefill = a.prompt * read + head
    plain = prefill + a.answer * token
    whole = (a.prompt + a.answer) * read + a.answer * head
    adapted = plain + (rows + 1) * whole
    scales = a.blocks * a.hidden
    lines = [
        "| | plain | ZOTTA, k = 5 |",
        "| --- | --- | --- |",
        f"| weights, GB | {weights / 1e9:.2f} | {weights / 1e9:.2f} |",
        f"| caches, GB | {cache / 1e9:.2f} | {(1 + rows) * cache / 1e9:.2f} |",
        f"| logits of perturbed passes, GB | 0 | {min(logits, 512 * 2**20) / 1e9:.2f} |",
        f"| state, KB | 0 | {scales * 4 / 1e3:.0f} |",
        f"| passes over prompt and answer | 1 | {1 + rows + 1} |",
        f"| seconds a question | {plain:.1f} | {adapted:.1f} |",
        f"| tokens a second, answer | {a.answer / plain:.1f} | {a.answer / adapted:.1f} |",
    ]
    return "\n".join(lines)

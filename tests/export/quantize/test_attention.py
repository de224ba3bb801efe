"""Attention and GELU are found by what they compute, however an exporter wrote them."""

from collections import Counter

import nets
import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from zotta_edge.export.norms.expose import expose_norms
from zotta_edge.export.quantize.attention import find_attentions
from zotta_edge.export.quantize.gelu import find_gelus
from zotta_edge.export.quantize.int8 import quantize_int8
from zotta_edge.export.sources.classifier import Classifier, as_classifier
from zotta_edge.format import IMAGE, LOGITS
from zotta_edge.sessions import open_session

OPSETS = (11, 17, 21)  # GELU spelled out with Erf in the first two, one node in the last
IMAGE_SHAPE = (3, nets.SIZE, nets.SIZE)


def adaptable(model: onnx.ModelProto) -> Classifier:
    classifier = as_classifier(model)
    expose_norms(classifier)
    return classifier


class BiasedAttention(nets.Attention):
    """A bias of position on the scores, as Swin has it: no plain attention."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.bias = nn.Parameter(torch.randn(17, 17))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        scores = query @ key.transpose(-2, -1) * (width // 2) ** -0.5 + self.bias
        return self.proj((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, tokens, width))


@pytest.mark.parametrize("opset", OPSETS)
def test_every_attention_and_gelu_is_found(opset: int) -> None:
    classifier = adaptable(nets.load("vit", opset))
    found = find_attentions(classifier.graph, classifier.shapes)
    assert [attention.heads for attention in found] == [2, 2, 2]
    assert {attention.weight.shape for attention in found} == {(16, 48)}
    assert len(find_gelus(classifier.graph)) == 3


def test_a_bias_on_the_scores_is_not_taken_for_attention() -> None:
    torch.manual_seed(0)
    model = nets.export(nets.ViT(attention=BiasedAttention).eval(), 17)
    classifier = adaptable(model)
    assert not find_attentions(classifier.graph, classifier.shapes)


@pytest.mark.parametrize("opset", OPSETS)
def test_fused_logits_follow_fp32(opset: int) -> None:
    model = nets.load("vit", opset)
    quantized, _ = quantize_int8(model, "avx2", adaptable(model).shapes)
    operators = Counter(node.op_type for node in quantized.graph.node)
    assert operators["QAttention"] == operators["FastGelu"] == 3
    images = np.random.default_rng(0).standard_normal((8, *IMAGE_SHAPE), dtype=np.float32)
    expected, found = (
        open_session(each.SerializeToString()).run([LOGITS], {IMAGE: images})[0]
        for each in (model, quantized)
    )
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 0.1

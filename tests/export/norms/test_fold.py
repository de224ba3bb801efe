"""BatchNorms folded into convolutions: the same answers, by fewer nodes."""

import numpy as np
import onnx
import onnxruntime as ort

from zotta_edge.export.norms.fold import fold_batch_norms


def test_folding_changes_no_answer(residual_net: onnx.ModelProto) -> None:
    folded = onnx.ModelProto()
    folded.CopyFrom(residual_net)
    count = sum(node.op_type == "BatchNormalization" for node in residual_net.graph.node)
    assert fold_batch_norms(folded) == count > 0
    assert not any(node.op_type == "BatchNormalization" for node in folded.graph.node)
    images = np.random.default_rng(0).standard_normal((4, 3, 16, 16), dtype=np.float32)
    name = residual_net.graph.input[0].name
    before, after = (
        ort.InferenceSession(model.SerializeToString()).run(None, {name: images})[0]
        for model in (residual_net, folded)
    )
    np.testing.assert_allclose(after, before, atol=1e-5 * np.abs(before).max())


def test_a_shared_convolution_keeps_its_norm(residual_net: onnx.ModelProto) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(residual_net)
    norms = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info("other"))
    model.graph.node.append(onnx.helper.make_node("Relu", [norms[0].input[0]], ["other"]))
    assert fold_batch_norms(model) == len(norms) - 1

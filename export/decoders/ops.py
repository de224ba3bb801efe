"""Writing an ONNX graph node by node."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

OPSET = 17
Axes = Sequence[str | int]
_TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}


class Ops:
    """Nodes and constants under construction; a call adds a node and returns its output.

    >>> ops = Ops()
    >>> ops("Add", "x", ops.constant("one", np.ones(1, np.float32)), name="y")
    'y'
    >>> ops("Neg", "y")
    'Neg_1'
    """

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._constants: dict[str, NDArray[Any]] = {}

    def __call__(self, op: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        output = name or f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"{output}/{op}"))
        self.nodes[-1].attribute.extend(
            helper.make_attribute(key, value) for key, value in attributes.items()
        )
        return output

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """A stored tensor; equal names mean equal values."""
        self._constants.setdefault(name, value)
        return name

    def numbers(self, *values: int) -> str:
        """A small list of integers, such as a shape or axes."""
        return self.constant(f"i{list(values)}", np.array(values, np.int64))

    def scalar(self, value: float) -> str:
        return self.constant(f"f{value!r}", np.array(value, np.float32))

    def input(self, name: str, kind: type, axes: Axes) -> str:
        declared = helper.make_tensor_value_info(name, _TYPES[np.dtype(kind)], axes)
        self.inputs.append(declared)
        return name

    def overridable(self, name: str, default: NDArray[Any], axes: Axes) -> str:
        """An input that may be left out."""
        self.input(name, default.dtype.type, axes)
        return self.constant(name, default)

    def output(self, name: str, axes: Axes) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, axes))

    def linear(self, x: str, weights: Any, path: str, name: str = "") -> str:
        """x W^T + b, where `weights` holds `path.weight` [out, in] and perhaps `path.bias`."""
        matrix = np.ascontiguousarray(np.asarray(weights[f"{path}.weight"], np.float32).T)
        bias = weights.get(f"{path}.bias")
        inner = f"{path}.product" if bias is not None else name or path
        y = self("MatMul", x, self.constant(f"{path}.weight", matrix), name=inner)
        if bias is None:
            return y
        b = self.constant(f"{path}.bias", np.asarray(bias, np.float32))
        return self("Add", y, b, name=name or path)

    def silu(self, x: str) -> str:
        return self("Mul", x, self("Sigmoid", x))

    def gelu(self, x: str) -> str:
        """x / 2 (1 + erf(x / sqrt 2))."""
        error = self("Erf", self("Mul", x, self.scalar(0.5**0.5)))
        half = self("Mul", x, self.scalar(0.5))
        return self("Mul", half, self("Add", error, self.scalar(1.0)))

    def rotate(self, x: str, head_dim: int) -> str:
        """(a, b) -> (a cos - b sin, b cos + a sin), a and b the halves of a head's last axis.

        `cos` and `sin` are tensors of these names.
        """
        half = head_dim // 2
        a = self("Slice", x, self.numbers(0), self.numbers(half), self.numbers(3))
        b = self("Slice", x, self.numbers(half), self.numbers(2 * half), self.numbers(3))
        left = self("Sub", self("Mul", a, "cos"), self("Mul", b, "sin"))
        right = self("Add", self("Mul", b, "cos"), self("Mul", a, "sin"))
        return self("Concat", left, right, axis=3)

    def rms_norm(self, x: str, scale: str, epsilon: float, name: str = "") -> str:
        """As the operator that every version of ONNX Runtime has."""
        return self("SimplifiedLayerNormalization", x, scale, name=name, axis=-1, epsilon=epsilon)

    def model(self, name: str) -> onnx.ModelProto:
        tensors = [numpy_helper.from_array(value, key) for key, value in self._constants.items()]
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, tensors)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8
        )

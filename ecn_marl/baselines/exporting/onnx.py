"""A policy of ports as an ONNX model, for runtimes without Python; needs the extra `onnx`.

Rows are ports, any number of them; of a policy with a network for each port, its ports in order.

    obs          float32 [rows, obs_dim]    observation, as the file's features say
    memory       float32 [rows, units]      only with a memory; zeros as an episode begins
    action       int64 [rows] or [rows, 3], or float32 [rows, 3] for `box`
    thresholds   float32 [rows, 3]          Kmin KB, Kmax KB, Pmax of a port of 25 Gb/s
    next_memory  float32 [rows, units]      only with a memory

Kmin and Kmax grow with the rate of a port. The metadata `ecn_marl` is the header of the policy, as
JSON: features, their normalisation, interval, actions.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl._files import write_all
from ecn_marl.baselines.exporting.policy import NORM_EPSILON, Policy

OPSET, IR_VERSION = 17, 8
"""Versions of ONNX: those of 2022, which all runtimes since then read."""

SUFFIX = ".onnx"


class _Graph:
    """Nodes and constants of a model, in order."""

    def __init__(self) -> None:
        try:
            from onnx import TensorProto, helper, numpy_helper
        except ImportError:
            allowed = "installed (an extra: pip install 'ecn-marl[onnx]')"
            raise bad_value("onnx", "not installed", allowed) from None
        self.helper: Any = helper
        self.numpy_helper: Any = numpy_helper
        self.kinds: Any = TensorProto
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        """The name of a constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(self.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Append a node, and return the name of its output."""
        out = name or f"x{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, inputs, [out], **attributes))
        return out

    def split(self, x: str, sizes: tuple[int, ...]) -> list[str]:
        """Parts of the last axis."""
        names = [f"x{len(self.nodes)}_{i}" for i in range(len(sizes))]
        lengths = self.constant(sizes, np.int64)
        self.nodes.append(self.helper.make_node("Split", [x, lengths], names, axis=-1))
        return names

    def product(self, x: str, weight: np.ndarray, bias: np.ndarray | None = None) -> str:
        """A layer, for all rows or with weights for each."""
        if weight.ndim == 2:
            x = self.op("MatMul", x, self.constant(weight))
        else:
            x = self.op("Einsum", x, self.constant(weight), equation="pi,pio->po")
        return x if bias is None else self.op("Add", x, self.constant(bias))


def onnx_model(policy: Policy) -> Any:
    """The model of a policy, an `onnx.ModelProto`.

    Raises:
        ValueError: onnx is not installed.
    """
    graph = _Graph()
    helper, kinds = graph.helper, graph.kinds
    rows: Any = "rows"
    if policy.message or not policy.shared:
        rows = len(policy.header["ports"])
    inputs = [helper.make_tensor_value_info("obs", kinds.FLOAT, [rows, policy.obs_dim])]
    outputs = []
    if policy.units:
        shape = [rows, policy.units]
        inputs.append(helper.make_tensor_value_info("memory", kinds.FLOAT, shape))
        outputs.append(helper.make_tensor_value_info("next_memory", kinds.FLOAT, shape))
    out = _network(graph, policy)
    head = policy.header["network"]["head"]
    decide = _continuous if head["kind"] == "tanh_mean" else _discrete
    decide(graph, policy, out)
    width = [rows] if head.get("scalar") else [rows, head.get("dim") or len(head["sizes"])]
    kind = kinds.FLOAT if head["kind"] == "tanh_mean" else kinds.INT64
    outputs += [
        helper.make_tensor_value_info("action", kind, width),
        helper.make_tensor_value_info("thresholds", kinds.FLOAT, [rows, 3]),
    ]
    made = helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants)
    model = helper.make_model(
        made,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="ecn_marl",
    )
    helper.set_model_props(model, {"ecn_marl": json.dumps(policy.header)})
    return model


def save_onnx(policy: Policy, path: str | Path) -> None:
    """Write the model of a policy, whole or not at all.

    Raises:
        ValueError: onnx is not installed.
    """
    data = onnx_model(policy).SerializeToString()
    write_all({Path(path): data})


def _network(graph: _Graph, policy: Policy) -> str:
    """The nodes of the network; the same steps as `Policy` takes with numpy."""
    activation = {"tanh": "Tanh", "relu": "Relu"}[policy.header["network"]["activation"]]
    x, last = "obs", len(policy.layers) - 1
    for i, (weight, bias) in enumerate(policy.layers):
        known, x = x, graph.product(x, weight, bias)
        if policy.gru is not None and i == last - 1:
            x = _gru(graph, policy, x)
        elif i < last:
            x = graph.op(activation, _normalised(graph, policy, i, x))
            if policy.message and i % 2:
                x = _heard(graph, policy, known, x)
    return x


def _heard(graph: _Graph, policy: Policy, known: str, said: str) -> str:
    """What every port knows, and beside it the averages of what its neighbours said."""
    heard = [graph.op("MatMul", graph.constant(x), said) for x in policy.averages]
    return graph.op("Concat", known, *heard, axis=-1)


def _normalised(graph: _Graph, policy: Policy, layer: int, x: str) -> str:
    """The inputs of a layer's activation, normalised if the policy's are."""
    if not policy.norms:
        return x
    scale, offset = policy.norms[layer]
    # The scale of the operator is one for all rows.
    ones = graph.constant(np.ones(scale.shape[-1]))
    x = graph.op("LayerNormalization", x, ones, axis=-1, epsilon=NORM_EPSILON)
    return graph.op("Add", graph.op("Mul", x, graph.constant(scale)), graph.constant(offset))


def _gru(graph: _Graph, policy: Policy, given: str) -> str:
    """The memory after, `next_memory`."""
    assert policy.gru is not None
    (weight, bias), parts = policy.gru, (policy.units,) * 3
    reset, update, candidate = graph.split(given, parts)
    of_reset, of_update, of_candidate = graph.split(graph.product("memory", weight), parts)
    keep = graph.op("Sigmoid", graph.op("Add", update, of_update))
    open_ = graph.op("Sigmoid", graph.op("Add", reset, of_reset))
    heard = graph.op("Mul", open_, graph.op("Add", of_candidate, graph.constant(bias)))
    new = graph.op("Tanh", graph.op("Add", candidate, heard))
    kept = graph.op("Mul", keep, "memory")
    rest = graph.op("Sub", graph.constant(1.0), keep)
    return graph.op("Add", kept, graph.op("Mul", rest, new), name="next_memory")


def _discrete(graph: _Graph, policy: Policy, out: str) -> None:
    """The best of each component's choices, and their row in the table of settings."""
    head = policy.header["network"]["head"]
    sizes = tuple(head["sizes"])
    logits = graph.split(out, sizes) if len(sizes) > 1 else [out]
    chosen = [graph.op("ArgMax", x, axis=-1, keepdims=1) for x in logits]
    # Choices are rows in the order of their components, the last one changes fastest.
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    action = chosen[0] if len(chosen) == 1 else graph.op("Concat", *chosen, axis=-1)
    axis = graph.constant([-1], np.int64)
    places = graph.op("Mul", action, graph.constant(strides, np.int64))
    row = graph.op("ReduceSum", places, axis, keepdims=0)
    if head["scalar"]:
        graph.op("Squeeze", action, axis, name="action")
    else:
        graph.op("Identity", action, name="action")
    graph.op("Gather", graph.constant(policy.settings), row, axis=0, name="thresholds")


def _continuous(graph: _Graph, policy: Policy, out: str) -> None:
    """The mean, and its thresholds on log scales as `policy._box` computes them."""
    dim = policy.header["network"]["head"]["dim"]
    width = policy.layers[-1][0].shape[-1]
    mean = graph.split(out, (dim, width - dim))[0] if width > dim else out
    graph.op("Tanh", mean, name="action")
    options = policy.header["actions"]["options"]
    (low, high), (rare, sure) = options["kmin_kb"], options["pmax"]
    one, half = graph.constant(1.0), graph.constant(0.5)
    fraction = graph.op("Mul", graph.op("Add", "action", one), half)
    first, second, third = graph.split(fraction, (1, 1, 1))

    def scaled(part: str, span: str, base: str) -> str:
        return graph.op("Mul", base, graph.op("Exp", graph.op("Mul", part, span)))

    kmin = scaled(first, graph.constant(math.log(high / low)), graph.constant(low))
    least = graph.op("Mul", kmin, graph.constant(options["min_ratio"]))
    room = graph.op("Log", graph.op("Div", graph.constant(options["kmax_kb"]), least))
    kmax = scaled(second, graph.op("Max", room, graph.constant(0.0)), least)
    pmax = scaled(third, graph.constant(math.log(sure / rare)), graph.constant(rare))
    graph.op("Concat", kmin, kmax, pmax, axis=-1, name="thresholds")

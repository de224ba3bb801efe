"""ONNX decoders of other exporters: adapted unchanged, or refused in one line."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tiny_decoders import tiny_decoder

from zotta_edge.errors import ZottaError
from zotta_edge.export.decoders.graph import decoder_graph
from zotta_edge.export.decoders.pipeline import DecoderOptions
from zotta_edge.export.decoders.sources import export_any_decoder, names_decoder
from zotta_edge.runtime.generate.engine import DecoderEngine
from zotta_edge.runtime.generate.methods.registry import METHODS
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.generate.prompts import Prompt
from zotta_edge.runtime.generate.settings import GenerationSettings
from zotta_edge.sessions import open_session

FILES = Path(__file__).parent / "files"
PROMPTS = [(5, 6, 7), (11, 12, 13, 14, 15, 16)]
GREEDY = [[0, 0, 0, 20, 20, 20, 20, 20], [12] * 8]  # transformers' answers of the Llama


def exported(source: Path, folder: Path, precision: str = "fp32") -> Path:
    export_any_decoder(str(source), folder / "adaptable.onnx", DecoderOptions(precision))
    return folder / "adaptable.onnx"


def answers(path: Path, method: str = "none") -> list[list[int]]:
    settings = GenerationSettings(max_tokens=8)
    model = AdaptiveDecoder.load(path, settings, method, threads=1)
    return [list(each.tokens) for each in model.complete([Prompt(ids) for ids in PROMPTS])]


def tool_s_answers(path: Path) -> list[list[int]]:
    """Greedy decoding of the file as its tool wrote it, prompt by prompt."""
    session = open_session(onnx.load(path).SerializeToString(), threads=1)
    names = [each.name for each in session.get_inputs() if each.name.startswith("past")]
    written = []
    for prompt in PROMPTS:
        ids = list(prompt)
        past = {name: np.empty((1, 1, 0, 16), np.float32) for name in names}
        for _ in range(8):
            feeds = {
                "input_ids": np.array([ids]),
                "attention_mask": np.ones((1, len(ids)), np.int64),
            }
            ids.append(int(session.run(["logits"], feeds | past)[0][0, -1].argmax()))
        written.append(ids[len(prompt) :])
    return written


def test_optimum_s_file(tmp_path: Path) -> None:
    assert names_decoder(str(FILES / "optimum" / "model.onnx"))
    path = exported(FILES / "optimum" / "model.onnx", tmp_path)
    info = DecoderEngine.open(path).info
    assert info.prompting.stop == (2,)
    assert (info.shape.layers, info.shape.context) == (2, 128)
    assert [norm.name for norm in info.norms] == [
        f"model.layers.{n}.post_attention_layernorm" for n in range(2)
    ]
    assert answers(path) == GREEDY


def test_genai_s_file_keeps_its_four_bits(tmp_path: Path) -> None:
    path = exported(FILES / "genai" / "model.onnx", tmp_path, "int8")
    info = DecoderEngine.open(path).info
    assert info.recipe.precision == "int4"
    assert not info.pads  # its attention counts tokens from the left
    assert (info.shape.head_dim, info.shape.kv_heads) == (16, 1)
    kept = [node for node in onnx.load(path).graph.node if node.op_type == "MatMulNBits"]
    source = [n for n in onnx.load(FILES / "genai" / "model.onnx").graph.node
              if n.op_type == "MatMulNBits"]  # fmt: skip
    assert len(kept) == len(source) > 0
    assert answers(path) == tool_s_answers(FILES / "genai" / "model.onnx")


@pytest.mark.parametrize("name", ["optimum", "genai"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_them(tmp_path: Path, name: str, method: str) -> None:
    path = exported(FILES / name / "model.onnx", tmp_path, "int8")
    assert all(0 < len(tokens) <= 8 for tokens in answers(path, method))


def test_a_merged_file(tmp_path: Path) -> None:
    """Both branches in one If, as optimum's earlier versions write it."""
    model = onnx.load(FILES / "optimum" / "model.onnx")
    graph = model.graph
    branches = [
        helper.make_graph(graph.node, name, [], list(graph.output)) for name in ("then", "else")
    ]
    inner = [value.name for value in graph.output]
    choice = helper.make_node(
        "If", ["use_cache_branch"], inner, then_branch=branches[0], else_branch=branches[1]
    )
    del graph.node[:]
    graph.node.append(choice)
    graph.input.append(helper.make_tensor_value_info("use_cache_branch", 9, [1]))
    merged = tmp_path / "decoder_model_merged.onnx"
    onnx.save(model, merged)
    shutil.copy(FILES / "optimum" / "config.json", tmp_path)
    assert answers(exported(merged, tmp_path)) == GREEDY


def test_a_file_without_a_cache(tmp_path: Path) -> None:
    model = onnx.load(FILES / "optimum" / "model.onnx")
    graph = model.graph
    for place in reversed(range(len(graph.input))):
        if graph.input[place].name.startswith("past"):
            empty = np.zeros((1, 2, 0, 8), np.float32)
            tensor = onnx.numpy_helper.from_array(empty, graph.input[place].name)
            graph.initializer.append(tensor)
            del graph.input[place]
    for place in reversed(range(len(graph.output))):
        if graph.output[place].name.startswith("present"):
            del graph.output[place]
    onnx.save(model, tmp_path / "decoder_model.onnx")
    shutil.copy(FILES / "optimum" / "config.json", tmp_path)
    path = exported(tmp_path / "decoder_model.onnx", tmp_path)
    model_ = AdaptiveDecoder.load(path, GenerationSettings(max_tokens=8), threads=1)
    assert not model_.info.cache
    got = [list(model_.complete([Prompt(ids)])[0].tokens) for ids in PROMPTS]
    assert got == GREEDY


def broken(change: Any, folder: Path) -> Path:
    model = onnx.load(FILES / "optimum" / "model.onnx")
    change(model)
    onnx.save(model, folder / "broken.onnx")
    return folder / "broken.onnx"


def _fuse_norms(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "Sqrt":  # stands for an operator nobody can look into
            node.op_type = "Abs"


def _no_logits(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "scores"
    next(n for n in model.graph.node if "logits" in n.output).output[0] = "scores"


def _cut_a_norm(model: onnx.ModelProto) -> None:
    scale = next(each for each in model.graph.initializer if "layernorm" in each.name)
    scale.raw_data = scale.raw_data[:-4]


def _forget_an_axis(model: onnx.ModelProto) -> None:
    cache = next(each for each in model.graph.input if each.name.startswith("past"))
    cache.type.tensor_type.shape.ClearField("dim")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_fuse_norms, "norms are fused"),
        (_no_logits, "no output logits"),
        (_cut_a_norm, "its graph is inconsistent"),
        (_forget_an_axis, "its graph is inconsistent"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: Any, reason: str) -> None:
    with pytest.raises(ZottaError, match=reason):
        exported(broken(change, tmp_path), tmp_path)
    assert not (tmp_path / "adaptable.onnx").exists()
    assert not list(tmp_path.glob(".*"))


def test_norms_by_another_name(tmp_path: Path) -> None:
    source = str(FILES / "optimum" / "model.onnx")
    options = DecoderOptions("fp32", norms="input_layernorm")
    info = export_any_decoder(source, tmp_path / "a.onnx", options)
    assert all(norm.attended for norm in info.norms)
    with pytest.raises(ZottaError, match="no norm matches"):
        export_any_decoder(source, tmp_path / "b.onnx", DecoderOptions("fp32", norms="nothing"))
    with pytest.raises(ZottaError, match="no norm of tiny0 matches"):
        decoder_graph(tiny_decoder(), "nothing")


@pytest.mark.parametrize(
    ("tool", "written", "said"),
    [
        ("optimum", "[]", "holds no JSON object"),
        ("optimum", "{", "is no JSON"),
        ("optimum", '{"hidden_size": "x", "num_attention_heads": 2}', "hidden_size is 'x'"),
        ("optimum", '{"hidden_size": 64, "num_attention_heads": 0}', "num_attention_heads is 0"),
        ("optimum", '{"pad_token_id": [1]}', "pad_token_id is [1]"),
        ("optimum", '{"eos_token_id": [2, null]}', "eos_token_id is None"),
        ("optimum", '{"eos_token_id": 99999}', "99999 is outside the 41"),
        ("genai", '{"model": {"decoder": 5, "context_length": "many"}}', "is 'many'"),
        ("genai", '{"model": []}', "does not tell its sizes"),
    ],
)
def test_sizes_that_are_nonsense(tmp_path: Path, tool: str, written: str, said: str) -> None:
    """They ended the export in a traceback, or in blaming a file of its own."""
    name = {"optimum": "config.json", "genai": "genai_config.json"}[tool]
    folder = shutil.copytree(FILES / tool, tmp_path / tool)
    (folder / name).write_text(written)
    with pytest.raises(ZottaError, match=re.escape(said)):
        export_any_decoder(str(folder / "model.onnx"), tmp_path / "out.onnx", DecoderOptions())
    assert not (tmp_path / "out.onnx").exists()

"""The Open Inference Protocol, spoken by the real Triton client and by hand."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import cv2
import numpy as np
import pytest
import served
import tritonclient.http as triton
from numpy.typing import NDArray
from served import ADAPTATION, CLASSIFY, INFER, NAME, Server
from tritonclient.utils import InferenceServerException

from zotta_edge import AdaptiveModel
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.http import limits
from zotta_edge.runtime.service.http.errors import ServiceError
from zotta_edge.runtime.service.http.inference_routes import InferenceRoutes


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Its batch never fills: answers are the source's."""
    with served.serving("--max-body", "1", "--batch-size", "512") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    yield client
    client.close()


@pytest.fixture(scope="module")
def images() -> NDArray[np.uint8]:
    return served.digits()[0][:4]


@pytest.fixture(scope="module")
def expected(images: NDArray[np.uint8]) -> Any:
    return AdaptiveModel.load(embedded.MODEL, method="none", threads=1).predict(images)


def tensor(values: NDArray[Any], datatype: str, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput("image", list(values.shape), datatype)
    made.set_data_from_numpy(values, binary_data=binary)
    return made


def prepared(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    from zotta_edge.runtime.io.preprocessing import prepare

    return prepare(images, read_info(embedded.MODEL).preprocessing)


def check(answer: triton.InferResult, expected: Any) -> None:
    np.testing.assert_allclose(answer.as_numpy("logits"), expected.logits, atol=1e-4)
    np.testing.assert_allclose(answer.as_numpy("probabilities"), expected.probabilities, atol=1e-5)
    labels = answer.as_numpy("label").astype(str)  # bytes, or texts where JSON was asked for
    assert labels.tolist() == [str(index) for index in expected.labels]


def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(NAME)
    assert client.is_model_ready(NAME, "1")
    assert not client.is_model_ready("another")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    found = client.get_model_metadata(NAME)
    assert found == client.get_model_metadata(NAME, "1")
    assert found["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 32, 32]}]
    assert [(one["name"], one["datatype"], one["shape"]) for one in found["outputs"]] == [
        ("logits", "FP32", [-1, 10]),
        ("probabilities", "FP32", [-1, 10]),
        ("label", "BYTES", [-1]),
    ]


def test_infer_as_the_client_does_it_by_default(
    client: triton.InferenceServerClient, images: NDArray[np.uint8], expected: Any
) -> None:
    """Binary both ways, no Content-Type."""
    answer = client.infer(NAME, [tensor(prepared(images), "FP32")], request_id="seven")
    check(answer, expected)
    response = answer.get_response()
    assert (response["model_name"], response["model_version"]) == (NAME, "1")
    assert response["id"] == "seven"
    assert all("binary_data_size" in one["parameters"] for one in response["outputs"])


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_infer_json_and_compressed(
    client: triton.InferenceServerClient,
    images: NDArray[np.uint8],
    expected: Any,
    compression: str | None,
    binary: bool,
) -> None:
    outputs = [
        triton.InferRequestedOutput(name, binary_data=binary)
        for name in ("label", "logits", "probabilities")
    ]
    answer = client.infer(
        NAME,
        [tensor(prepared(images), "FP32", binary)],
        outputs=outputs,
        model_version="1",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    check(answer, expected)
    assert [one["name"] for one in answer.get_response()["outputs"]] == [
        "label",
        "logits",
        "probabilities",
    ]


def test_large_answers_are_compressed_when_asked_for(server: Server) -> None:
    body, headers = served.infer_body(np.zeros((64, 32, 32, 1), np.uint8))
    for encoding, unpack in (("gzip", gzip.decompress), ("deflate", zlib.decompress)):
        reply = server.request("POST", INFER, body, headers | {"Accept-Encoding": encoding})
        assert reply.headers["content-encoding"] == encoding
        assert json.loads(unpack(reply.body))["outputs"][0]["shape"] == [64, 10]
    for declined, encoding in (("gzip;q=0, deflate", "deflate"), ("deflate; q=0.0", None)):
        reply = server.request("POST", INFER, body, headers | {"Accept-Encoding": declined})
        assert reply.headers.get("content-encoding") == encoding


def test_selected_outputs(
    client: triton.InferenceServerClient, images: NDArray[np.uint8], expected: Any
) -> None:
    wanted = [triton.InferRequestedOutput("probabilities")]
    answer = client.infer(NAME, [tensor(prepared(images), "FP32")], outputs=wanted)
    assert [one["name"] for one in answer.get_response()["outputs"]] == ["probabilities"]
    np.testing.assert_allclose(answer.as_numpy("probabilities"), expected.probabilities, atol=1e-5)
    assert answer.as_numpy("logits") is None


def test_pixels_and_image_files(
    client: triton.InferenceServerClient, images: NDArray[np.uint8], expected: Any
) -> None:
    import cv2

    check(client.infer(NAME, [tensor(images, "UINT8")]), expected)
    files = [cv2.imencode(".png", image)[1].tobytes() for image in images]
    check(client.infer(NAME, [tensor(np.array(files, object), "BYTES")]), expected)


@pytest.mark.parametrize(("side", "long"), [(1990, False), (2010, True)])
def test_large_images_are_decoded_one_at_a_time(side: int, long: bool) -> None:
    """Twelve clients who sent them kept one small image waiting for 90 seconds, in 2.2 GB."""
    asked = []

    class Recorded:
        async def in_thread(self, work: Any, long: bool = False) -> Any:
            asked.append(long)
            return work()

    file = cv2.imencode(".png", np.zeros((side, side), np.uint8))[1].tobytes()
    pixels, service = read_info(embedded.MODEL).preprocessing, cast(Any, Recorded())
    size, image = asyncio.run(limits.decoded(file, pixels, service))
    assert (size, image.shape, asked) == (side * side, (32, 32, 1), [False, long])


def test_files_that_unpack_to_too_much_are_refused(
    images: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PIXELS", 5000)
    info, config = read_info(embedded.MODEL), Config(max_body=0.001)

    async def in_thread(work: Any, long: bool = False) -> Any:
        return work()

    service: Any = SimpleNamespace(
        model=SimpleNamespace(info=info), config=config, in_thread=in_thread
    )
    file = cv2.imencode(".png", images[0])[1].tobytes()
    assert len(asyncio.run(InferenceRoutes(service)._decoded([file] * 8))) == 8
    with pytest.raises(ServiceError, match="pixels in one request") as refused:
        asyncio.run(InferenceRoutes(service)._decoded([file] * 9))
    assert refused.value.status == 413


def test_adaptation_can_be_declined(server: Server, client: triton.InferenceServerClient) -> None:
    many = served.digits()[0][:64]
    before = server.get(ADAPTATION)
    client.infer(NAME, [tensor(many, "UINT8")], parameters={"adapt": False})
    after = server.get(ADAPTATION)
    assert after["answered"] == before["answered"] + 64
    assert (after["images"], after["waiting"]) == (before["images"], before["waiting"])
    client.infer(NAME, [tensor(many, "UINT8")])
    after = server.get(ADAPTATION)
    assert after["images"] + after["waiting"] == before["images"] + before["waiting"] + 64


def test_errors_reach_the_client(client: triton.InferenceServerClient) -> None:
    zeros = np.zeros((1, 1, 32, 32), np.float32)
    infinite = np.full_like(zeros, np.inf)
    with pytest.raises(InferenceServerException, match="no model is called nobody"):
        client.infer("nobody", [tensor(zeros, "FP32")])
    with pytest.raises(InferenceServerException, match="no version 2"):
        client.infer(NAME, [tensor(zeros, "FP32")], model_version="2")
    with pytest.raises(InferenceServerException, match=r"expected a preprocessed batch of shape"):
        client.infer(NAME, [tensor(zeros[:, :, :16], "FP32")])
    with pytest.raises(InferenceServerException, match="NaN or infinite"):
        client.infer(NAME, [tensor(infinite, "FP32")])
    for wanted, message in (
        (triton.InferRequestedOutput("scores"), "no output is called 'scores'"),
        (triton.InferRequestedOutput("logits", class_count=3), "only plain outputs"),
    ):
        with pytest.raises(InferenceServerException, match=message):
            client.infer(NAME, [tensor(zeros, "FP32")], outputs=[wanted])
    with pytest.raises(InferenceServerException, match="larger than 1 MB"):
        client.infer(NAME, [tensor(np.zeros((300, 1, 32, 32), np.float32), "FP32")])
    assert client.is_server_ready()


def entry(**changes: Any) -> dict[str, Any]:
    zeros = [0.0] * 1024
    return {"name": "image", "datatype": "FP32", "shape": [1, 1, 32, 32], "data": zeros} | changes


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        ([], "the request must be a JSON object"),
        ({"inputs": []}, "expected one input"),
        ({"inputs": [entry(), entry()]}, "expected one input"),
        ({"inputs": [3]}, "the input must be a JSON object"),
        ({"inputs": [entry(name="x")]}, "no input is called 'x'"),
        ({"inputs": [entry(datatype="INT4")]}, "datatype 'INT4'"),
        ({"inputs": [entry(datatype="BYTES", data=["a"])]}, "send BYTES as binary data"),
        ({"inputs": [entry(shape=[1, 32, 32])]}, "expected a preprocessed batch"),
        ({"inputs": [entry(shape=[1, 1, 32, 31])]}, "1024 elements for shape"),
        ({"inputs": [entry(shape=[0, 1, 32, 32])]}, "from 1 up"),
        ({"inputs": [entry(shape=[True, 1, 32, 32])]}, "from 1 up"),
        ({"inputs": [entry(shape=[2**62, 2**62])]}, "from 1 up"),
        ({"inputs": [entry(shape=[9, 10**9, 10**9, 10**9])]}, "elements for shape"),
        ({"inputs": [entry(shape="1")]}, "shape must be a list"),
        ({"inputs": [entry(data=None)]}, "no data"),
        ({"inputs": [entry(data=[[1], [2, 3]])]}, "not a regular array"),
        ({"inputs": [entry(data=["a"] * 1024)]}, "does not consist of FP32"),
        ({"inputs": [entry(data=["a" * 400_000] + [0] * 150_000)]}, "does not consist of FP32"),
        ({"inputs": [entry(data=[[1], 2])]}, "not a regular array"),
        ({"inputs": [entry(data=[10**400, 0.5])]}, "does not consist of FP32"),
        ({"inputs": [entry(data=[1e400] * 1024)]}, "NaN or infinite"),
        ({"inputs": [entry(data=[1e39] * 1024)]}, "NaN or infinite"),
        ({"inputs": [entry(data=[float("nan")] * 1024)]}, "NaN or infinite"),
        ({"inputs": [entry(data=[256] * 1024, datatype="UINT8")]}, "from 0 to 255"),
        ({"inputs": [entry(data=[-1] * 1024, datatype="UINT8")]}, "from 0 to 255"),
        ({"inputs": [entry(data=[0.5] * 1024, datatype="UINT8")]}, "consist of UINT8"),
        ({"inputs": [entry(parameters={"binary_data_size": 4096})]}, "but 0 bytes follow"),
        ({"inputs": [entry(parameters={"binary_data_size": -1})]}, "but 0 bytes follow"),
        ({"inputs": [entry(parameters={"shared_memory_region": "x"})]}, "shared memory"),
        ({"inputs": [entry()], "id": 7}, "id must be a text"),
        ({"inputs": [entry()], "outputs": 7}, "outputs must be a list"),
        ({"inputs": [entry()], "outputs": [7]}, "an output must be a JSON object"),
        ({"inputs": [entry()], "parameters": {"adapt": "no"}}, "adapt must be true or false"),
        ({"inputs": [entry()], "parameters": 7}, "parameters must be a JSON object"),
    ],
)
def test_bad_requests(server: Server, request_: Any, message: str) -> None:
    body = request_ if isinstance(request_, bytes) else json.dumps(request_).encode()
    reply = server.request("POST", INFER, body)
    assert reply.status == 400, reply.body
    assert message in reply.json["error"]
    assert "/" not in reply.json["error"]


@pytest.mark.parametrize(
    ("data", "shape", "datatype", "message"),
    [
        (b"\0" * 4095, [1, 1, 32, 32], "FP32", "takes 4096 bytes, not 4095"),
        (b"\0" * 1024, [1, 1, 32, 32], "FP32", "takes 4096 bytes, not 1024"),
        (b"\x05\0\0\0abc", [1], "BYTES", "ends early"),
        (b"\x05\0\0", [1], "BYTES", "ends early"),
        (b"\x03\0\0\0abc", [2], "BYTES", "ends early"),
        (b"\x03\0\0\0abc" * 2, [1], "BYTES", "goes on after its 1 elements"),
        (b"\x03\0\0\0abc", [1], "BYTES", "not a JPEG"),
        (b"\xff" * 2000, [2000, 1, 1, 1], "UINT8", "2000 images in one request"),
        (b"\xff" * 1000, [1, 1000, 1, 1], "UINT8", "too narrow"),
    ],
)
def test_bad_binary_data(
    server: Server, data: bytes, shape: list[int], datatype: str, message: str
) -> None:
    parameters = {"binary_data_size": len(data)}
    made = entry(shape=shape, datatype=datatype, parameters=parameters)
    del made["data"]
    text = json.dumps({"inputs": [made]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    reply = server.request("POST", INFER, text + data, headers)
    assert reply.status in (400, 413)
    assert message in reply.json["error"]
    more = server.request("POST", INFER, text + data + b"x", headers)
    assert "bytes of binary data" in more.json["error"] or message in more.json["error"]


@pytest.mark.parametrize("length", ["-1", "x", "99999999", "9" * 5000, "²"])
def test_bad_header_length(server: Server, length: str) -> None:
    headers = {"Inference-Header-Content-Length": length.encode("latin-1").decode("latin-1")}
    reply = server.request("POST", INFER, b"{}", headers)
    assert reply.status == 400
    assert "Inference-Header-Content-Length" in reply.json["error"]


def test_classify(server: Server, images: NDArray[np.uint8]) -> None:
    import cv2

    plain = AdaptiveModel.load(embedded.MODEL, method="none", threads=1)
    for index, kind in enumerate((".png", ".jpg", ".bmp")):
        expected = plain.predict(images[index : index + 1])
        file = cv2.imencode(kind, images[index])[1].tobytes()
        found = server.post(CLASSIFY + "?top=3&adapt=false", file)
        assert found["label"] == str(expected.labels[0])
        assert len(found["top"]) == 3
        assert found["top"][0]["probability"] == found["probability"]
        tolerance = 0.1 if kind == ".jpg" else 1e-5
        assert found["probability"] == pytest.approx(expected.probabilities.max(), abs=tolerance)
    assert len(server.post(CLASSIFY, file)["top"]) == 5


@pytest.mark.parametrize(
    ("body", "query", "status", "message"),
    [
        (b"", "", 400, "empty"),
        (b"hello", "", 400, "not a JPEG, PNG"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 8, "", 400, "cannot be decoded"),
        (b"P6 65536 65536 255 ", "", 400, "more than 64 million"),
        (b"x", "?top=0", 400, "top must be"),
        (b"x", "?top=many", 400, "top must be"),
        (b"x", "?adapt=1", 400, "adapt must be"),
    ],
)
def test_classify_refuses(
    server: Server, body: bytes, query: str, status: int, message: str
) -> None:
    reply = server.request("POST", CLASSIFY + query, body)
    assert (reply.status, message in reply.json["error"]) == (status, True), reply.body


def test_forms_are_told_what_to_do(server: Server) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    reply = server.request("POST", CLASSIFY, b"--x", headers)
    assert reply.status == 415
    assert "--data-binary" in reply.json["error"]


def test_unknown_paths_and_methods(server: Server) -> None:
    for method, path, status in (
        ("GET", "/v3", 404),
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", INFER, 405),
        ("POST", "/v2", 405),
        ("DELETE", ADAPTATION, 405),
    ):
        reply = server.request(method, path)
        assert reply.status == status, path
        assert "error" in reply.json


def mutated(body: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.integers(1, 6)):
        at = int(rng.integers(min(len(changed), 200)))
        match rng.integers(3):
            case 0:
                changed[at] = rng.integers(256)
            case 1:
                del changed[at : at + int(rng.integers(1, 9))]
            case _:
                pieces = (b"null", b"[]", b"{}", b"-1", b"1e999", b"true", b"9" * 30, b"\xff\0")
                changed[at:at] = pieces[rng.integers(len(pieces))]
    return bytes(changed)


@pytest.mark.slow
def test_no_damaged_request_is_our_failure(server: Server, images: NDArray[np.uint8]) -> None:
    import cv2

    rng = np.random.default_rng(0)
    binary, headers = served.infer_body(images[:2])
    text = json.dumps({"inputs": [entry()], "outputs": [{"name": "label"}], "id": "x"}).encode()
    png, jpeg = (cv2.imencode(kind, images[0])[1].tobytes() for kind in (".png", ".jpg"))
    client = served.Client(server.port)
    for _ in range(100):
        for path, body, more in (
            (INFER, binary, headers),
            (INFER, text, {}),
            (CLASSIFY, png, {}),
            (CLASSIFY, jpeg, {}),
        ):
            reply = client.request("POST", path, mutated(body, rng), more)
            assert reply.status in (200, 400, 413), reply.body
            assert "error" in reply.json or reply.status == 200
    assert not any("Traceback" in line for line in server.lines)

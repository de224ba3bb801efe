"""A served model, asked with Triton's own client: the protocol is KServe's v2.

pip install 'zotta-edge[serve]' 'tritonclient[http]'
zotta-edge serve &
python examples/ask_with_tritonclient.py [HOST:PORT]
"""

import json
import sys
from urllib.request import urlopen

import numpy as np
import tritonclient.http as triton

from zotta_edge.models import embedded

MODEL, BATCH = "digits_vit_int8", 16


def main() -> None:
    server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8080"
    client = triton.InferenceServerClient(server)
    print("input:", client.get_model_metadata(MODEL)["inputs"][0])

    stream = embedded.corrupted_stream("fog")
    images = np.stack([sample.image for sample in stream])  # uint8, [image, height, width, 1]
    truth = np.load(embedded.STREAM)["labels"]
    for start in range(0, 480, BATCH):
        # Pixels may be sent as they are; the server resizes and normalizes them.
        batch = images[start : start + BATCH]
        tensor = triton.InferInput("image", batch.shape, "UINT8")
        tensor.set_data_from_numpy(batch)
        answer = client.infer(MODEL, [tensor], outputs=[triton.InferRequestedOutput("label")])
        labels = answer.as_numpy("label").astype(int)
        if start % 160 == 0:
            right = (labels == truth[start : start + BATCH]).mean()
            print(f"images {start + 1} to {start + BATCH}: {right:.0%} right")

    # What the model is doing is one GET away; so are /metrics and a dashboard at /.
    with urlopen(f"http://{server}/v2/models/{MODEL}/adaptation") as reply:
        doing = json.load(reply)
    print(f"steps {doing['steps']}, filter {doing['filter']}, drift {doing['drift']:.2f}")


if __name__ == "__main__":
    main()

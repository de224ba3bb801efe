"""From a torch module to an INT8 file that adapts: train, export, calibrate, prime, adapt.

    pip install 'zotta-edge[export]'
    python examples/export_a_torch_model.py [FOLDER]

The same on the command line, once the weights are in net.pth:

    PYTHONPATH=examples zotta-edge export export_a_torch_model:Net --weights net.pth \
        --size 32x32 --preprocessing half -o net.onnx
    zotta-edge calibrate net.onnx --source digits.npy --layers 1 --prime
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from zotta_edge import AdaptiveModel
from zotta_edge.calibration.calibrate import Settings, calibrate, store
from zotta_edge.calibration.prime import prime
from zotta_edge.calibration.selection import Choice
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.models import embedded
from zotta_edge.models.train_digits import as_input, digits


class Net(nn.Module):
    """Any module will do that maps images to logits and has norm layers; here two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU())
        self.head = nn.Linear(32 * 16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = self.stage2(self.stage1(image))
        pooled = nn.functional.adaptive_avg_pool2d(features, 4).flatten(1)
        return self.head(pooled)


def train(images: torch.Tensor, labels: torch.Tensor, epochs: int = 6) -> Net:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3)
    for _ in range(epochs):
        for index in torch.randperm(len(images)).split(32):
            loss = nn.functional.cross_entropy(net(images[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.eval()


def main(folder: Path) -> None:
    source, _ = digits()  # uint8, clean
    net = train(as_input("digits_vit", source.images), torch.from_numpy(source.labels))
    torch.save(net.state_dict(), folder / "net.pth")

    # Export checks itself: the same logits as torch's, and INT8 close to fp32.
    sys.path.insert(0, str(Path(__file__).parent))  # where module:factory is looked for
    options = ExportOptions(
        weights=folder / "net.pth", size=(32, 32), mean=(0.5,), std=(0.5,), interpolation="bicubic"
    )
    model = folder / "net.onnx"
    export_model("export_a_torch_model:Net", model, options)

    # Clean images tell what the features look like at the source, and how they move.
    settings = Settings(Choice(layers=(0, 1)))
    store(prime(calibrate(model, source.images, settings=settings), source.images, settings))
    print(f"{model.stat().st_size / 1000:.0f} kB")

    adapting = AdaptiveModel.load(model)
    plain, stream = adapting.unadapted(), embedded.corrupted_stream("contrast")
    images, truth = [sample.image for sample in stream], np.load(embedded.STREAM)["labels"]
    for name, one in (("unadapted", plain), ("adapted", adapting)):
        batches = [one.predict(images[i : i + 16]).labels for i in range(0, len(images), 16)]
        print(f"{name}: {(np.concatenate(batches) == truth).mean():.1%} right in low contrast")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as temporary:
            main(Path(temporary))

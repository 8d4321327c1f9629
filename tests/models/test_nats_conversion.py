"""Published weights of NATS-Bench give the same logits here as in the network they came from."""

import functools
import io
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.models import NATSNetwork, NATSNetworkConfig
from bqnes_jax.models.torch_weights import convert_published
from bqnes_jax.nats_bench import unpickle
from bqnes_jax.spaces.nats import EDGES
from tests.helpers import published

# Published weights are float32.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

CONFIG = NATSNetworkConfig()  # 16 channels, 5 cells in a stage
IMAGES = np.random.default_rng(1).normal(size=(3, 3, 8, 8)).astype(np.float32)

# Every operation; no weights in the cells; no path from input to output.
ALL = "|nor_conv_3x3~0|+|avg_pool_3x3~0|nor_conv_1x1~1|+|skip_connect~0|none~1|nor_conv_3x3~2|"
PLAIN = "|skip_connect~0|+|avg_pool_3x3~0|skip_connect~1|+|none~0|skip_connect~1|avg_pool_3x3~2|"
CUT = "|nor_conv_3x3~0|+|nor_conv_1x1~0|none~1|+|none~0|none~1|none~2|"


@functools.cache
def network():
    return jax.jit(NATSNetwork(CONFIG).apply)


def ours(state, text):
    arch = published.architecture(text)
    variables = convert_published(state, arch, CONFIG)
    return network()(variables, jnp.asarray(arch, jnp.int32), IMAGES.transpose(0, 2, 3, 1))


@pytest.mark.slow
def test_the_same_logits_as_in_plain_numpy():
    for seed, text in enumerate([ALL, PLAIN, CUT, *published.texts(2)]):
        state = published.settled(text, IMAGES, seed=seed)
        expected = published.logits(state, text, IMAGES)
        assert 0.1 < np.abs(expected).max() < 100
        np.testing.assert_allclose(ours(state, text), expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_the_same_logits_as_in_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed; it takes 200 MB")
    torch.set_num_threads(1)  # more of them wait for each other, four times longer
    generator = np.random.default_rng(0)
    worst = 0.0
    for text in published.texts(20, seed=2):
        state = published.settled(text, IMAGES, seed=int(generator.integers(1 << 30)))
        model = torch_network(torch, text).eval()
        model.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
        with torch.no_grad():
            expected = model(torch.tensor(IMAGES)).numpy()
        # As published: pickled with the tensors of PyTorch, read without it.
        read = unpickle(io.BytesIO(pickle.dumps(model.state_dict(), protocol=4)))
        found = ours({name: tensor.array() for name, tensor in read.items()}, text)
        worst = max(worst, float(np.abs(found - expected).max()))
        assert worst < 1e-4, text
    print(f"largest difference of logits from PyTorch's: {worst:.1e}")


def torch_network(torch, text):
    """Build NAS-Bench-201's network as a PyTorch module, under its published names."""
    nn = torch.nn

    class ReLUConvNorm(nn.Module):
        def __init__(self, into, out, size, stride=1):
            super().__init__()
            conv = nn.Conv2d(into, out, size, stride, size // 2, bias=False)
            self.op = nn.Sequential(nn.ReLU(), conv, nn.BatchNorm2d(out))

        def forward(self, x):
            return self.op(x)

    class Nothing(nn.Module):
        def forward(self, x):
            return 0 * x

    class Cell(nn.Module):
        def __init__(self, width):
            super().__init__()
            make = {
                "none": Nothing,
                "skip_connect": nn.Identity,
                "nor_conv_1x1": lambda: ReLUConvNorm(width, width, 1),
                "nor_conv_3x3": lambda: ReLUConvNorm(width, width, 3),
                "avg_pool_3x3": lambda: nn.AvgPool2d(3, 1, 1, count_include_pad=False),
            }
            self.layers = nn.ModuleList(make[name]() for name in published.operations(text))

        def forward(self, x):
            nodes = [x, 0, 0, 0]
            for (source, target), layer in zip(EDGES, self.layers, strict=True):
                nodes[target] = nodes[target] + layer(nodes[source])
            return nodes[3]

    class Reduction(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.conv_a = ReLUConvNorm(width, 2 * width, 3, 2)
            self.conv_b = ReLUConvNorm(2 * width, 2 * width, 3)
            shrink = nn.Conv2d(width, 2 * width, 1, bias=False)
            self.downsample = nn.Sequential(nn.AvgPool2d(2), shrink)

        def forward(self, x):
            return self.conv_b(self.conv_a(x)) + self.downsample(x)

    class Network(nn.Module):
        def __init__(self, width=CONFIG.channels, cells=CONFIG.cells, classes=CONFIG.classes):
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
            )
            layers = []
            for stage in range(3):
                if stage:
                    layers.append(Reduction(width))
                    width *= 2
                layers += [Cell(width) for _ in range(cells)]
            self.cells = nn.ModuleList(layers)
            self.lastact = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU())
            self.classifier = nn.Linear(width, classes)

        def forward(self, x):
            x = self.stem(x)
            for cell in self.cells:
                x = cell(x)
            return self.classifier(self.lastact(x).mean((2, 3)))

    return Network()


def test_weights_of_another_network_are_refused():
    arch, small = published.architecture(ALL), NATSNetworkConfig(channels=2, cells=1)
    state = published.state_dict(ALL, channels=2, cells=1)
    convert_published(state, arch, small)

    def refused(says, state, arch=arch, config=small):
        with pytest.raises(BQNESError, match=says):
            convert_published(state, arch, config)

    without = {name: array for name, array in state.items() if name != "lastact.0.running_var"}
    refused(r"lastact\.0\.running_var is missing in the weights of \|nor_conv_3x3~0", without)
    refused(r"stem\.0\.bias does not belong there", {**state, "stem.0.bias": np.zeros(2)})
    refused(r"cells\.0\.layers\.0\.op\.1\.weight does not belong", state, np.zeros(6, int))
    refused(r"cells\.10\.conv_a\S+ is missing|does not belong", state, config=CONFIG)
    refused(r"stem\.0\.weight has shape \(2, 3, 3, 3\)", state, config=NATSNetworkConfig(4, 1))

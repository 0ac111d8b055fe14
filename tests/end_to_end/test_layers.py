"""Every stock layer of oneflow.nn that runs on CPU: global, it computes what the local one does.

Built in a scope and migrated by ``local_to_global``, broadcast and split; same forward, backward
and buffers. The local layer runs on rank 0, since OneFlow 0.9.0 can run recurrent layers and PReLU
locally on no other one (``flow.empty`` makes its tensors on cpu:0); all ranks take part in the
global one and rank 0 compares.
"""

from __future__ import annotations

import numpy as np
import pytest
from oneflow import nn

from autoglobal import global_scope, local_to_global
from tests.helpers.support import S0, B, local_names, tensor
from tests.helpers.trees import assert_all_close, fill, logical, waves

x = waves
SEQ, IMG, VOL = x(2, 4, 6), x(2, 4, 6, 6), x(2, 4, 4, 4, 4)
FLAT, SIDE = x(4, 8), x(4, 8, seed=1)
LABELS = np.array([1, 0, 7, 3])
PROBABILITIES = (FLAT + 1.1) / 2.2
STATE = x(3, 5, seed=2)


def indices(*shape: int) -> np.ndarray:
    """What a MaxPool of 2 would return: some place in each window, the first or the last."""
    grid = np.indices(shape[2:]) * 2
    flat = np.ravel_multi_index(tuple(grid), tuple(2 * size for size in shape[2:]))
    return np.broadcast_to(flat, shape).astype(np.int64).copy()


def sizes(kind: str, *arguments, **options) -> dict:
    """nn.<kind>1d, 2d and 3d with the same arguments."""
    return {
        f"{kind}{n}d": (lambda n=n: getattr(nn, f"{kind}{n}d")(*arguments, **options), [data])
        for n, data in ((1, SEQ), (2, IMG), (3, VOL))
        if hasattr(nn, f"{kind}{n}d")
    }


def plain(data: np.ndarray, **constructors) -> dict:
    return {name: (make or getattr(nn, name), [data]) for name, make in constructors.items()}


ACTIVATIONS = """
    ELU CELU GELU QuickGELU Hardsigmoid Hardshrink Hardswish Hardtanh LeakyReLU LogSigmoid Mish ReLU
    ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Identity GLU Flatten MinMaxObserver"""
# Name: constructor, inputs.
LAYERS = {
    "Linear": (lambda: nn.Linear(6, 8), [x(3, 6)]),
    "Linear without bias": (lambda: nn.Linear(6, 7, bias=False), [x(3, 6)]),
    "Linear to one": (lambda: nn.Linear(6, 1), [x(3, 6)]),
    "Embedding": (lambda: nn.Embedding(11, 4, padding_idx=0), [LABELS]),
    "LayerNorm": (lambda: nn.LayerNorm(8), [FLAT]),
    "LayerNorm of two": (lambda: nn.LayerNorm((4, 6)), [SEQ]),
    "RMSLayerNorm": (lambda: nn.RMSLayerNorm(8), [FLAT]),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), [IMG]),
    "FusedMLP": (lambda: nn.FusedMLP(8, [16, 12], 4), [FLAT]),
    "PReLU": (nn.PReLU, [IMG]),
    "PReLU of four": (lambda: nn.PReLU(4), [IMG]),
    **sizes("Conv", 4, 8, 3, padding=1),
    **{f"{k} in groups": v for k, v in sizes("Conv", 4, 8, 3, groups=4).items()},
    **sizes("ConvTranspose", 4, 8, 3, stride=2),
    **sizes("QatConv", 4, 8, 3),
    **sizes("BatchNorm", 4),
    **{
        f"{k} without statistics": v
        for k, v in sizes("BatchNorm", 4, track_running_stats=False).items()
    },
    **sizes("FusedBatchNorm", 4),
    **sizes("InstanceNorm", 4, affine=True),
    **sizes("MaxPool", 2),
    **sizes("AvgPool", 2),
    **sizes("AdaptiveAvgPool", 2),
    **sizes("AdaptiveMaxPool", 2),
    **sizes("ConstantPad", 1, 3.5),
    **sizes("ReflectionPad", 1),
    **sizes("ReplicationPad", 1),
    **sizes("ZeroPad", 1),
    "MaxUnpool1d": (lambda: nn.MaxUnpool1d(2), [SEQ, indices(2, 4, 6)]),
    "MaxUnpool2d": (lambda: nn.MaxUnpool2d(2), [IMG, indices(2, 4, 6, 6)]),
    "MaxUnpool3d": (lambda: nn.MaxUnpool3d(2), [VOL, indices(2, 4, 4, 4, 4)]),
    "RNN": (lambda: nn.RNN(6, 5), [SEQ]),
    "LSTM": (lambda: nn.LSTM(6, 5, num_layers=2, bidirectional=True), [SEQ]),
    "LSTM with projection": (lambda: nn.LSTM(6, 5, proj_size=4), [SEQ]),
    "GRU": (lambda: nn.GRU(6, 5, batch_first=True), [SEQ]),
    "RNNCell": (lambda: nn.RNNCell(6, 5), [x(3, 6), STATE]),
    "LSTMCell": (lambda: nn.LSTMCell(6, 5), [x(3, 6), (STATE, x(3, 5, seed=3))]),
    "GRUCell": (lambda: nn.GRUCell(6, 5), [x(3, 6), STATE]),
    **plain(
        FLAT,
        **dict.fromkeys(ACTIVATIONS.split()),
        Threshold=lambda: nn.Threshold(0.1, 0.2),
        Softmax=lambda: nn.Softmax(dim=-1),
        LogSoftmax=lambda: nn.LogSoftmax(dim=-1),
        Dropout=lambda: nn.Dropout(0.5).eval(),
    ),
    **plain(
        IMG,
        PixelShuffle=lambda: nn.PixelShuffle(2),
        Upsample=lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        UpsamplingBilinear2d=lambda: nn.UpsamplingBilinear2d(scale_factor=2),
        UpsamplingNearest2d=lambda: nn.UpsamplingNearest2d(scale_factor=2),
        Unfold=lambda: nn.Unfold(2),
    ),
    "Fold": (lambda: nn.Fold((4, 4), 2, stride=2), [x(2, 8, 4)]),
    "MovingAverageMinMaxObserver": (
        lambda: nn.MovingAverageMinMaxObserver(2),
        [FLAT, np.array([0])],
    ),
    "CosineSimilarity": (nn.CosineSimilarity, [FLAT, SIDE]),
    "PairwiseDistance": (nn.PairwiseDistance, [FLAT, SIDE]),
    "L1Loss": (nn.L1Loss, [FLAT, SIDE]),
    "MSELoss": (nn.MSELoss, [FLAT, SIDE]),
    "SmoothL1Loss": (nn.SmoothL1Loss, [FLAT, SIDE]),
    "KLDivLoss": (nn.KLDivLoss, [FLAT, PROBABILITIES]),
    "BCELoss": (lambda: nn.BCELoss(tensor(PROBABILITIES)), [PROBABILITIES, PROBABILITIES]),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss, [FLAT, PROBABILITIES]),
    "CrossEntropyLoss": (lambda: nn.CrossEntropyLoss(tensor(FLAT[0] + 2)), [FLAT, LABELS]),
    "NLLLoss": (lambda: nn.NLLLoss(tensor(FLAT[0] + 2)), [FLAT, LABELS]),
    "MarginRankingLoss": (nn.MarginRankingLoss, [FLAT, SIDE, np.sign(x(4, 8, seed=4))]),
    "TripletMarginLoss": (nn.TripletMarginLoss, [FLAT, SIDE, x(4, 8, seed=5)]),
    "CombinedMarginLoss": (lambda: nn.CombinedMarginLoss(1.0, 0.5, 0.1), [FLAT * 0.9, LABELS]),
    "CTCLoss": (
        nn.CTCLoss,
        [x(6, 2, 5), np.array([[1, 2], [3, 1]]), np.array([6, 5]), np.array([2, 1])],
    ),
}

# What OneFlow 0.9.0 cannot do on CPU: constructor, inputs, the local layer's own error.
LOCAL_FAILS = {
    "RMSNorm": (lambda: nn.RMSNorm(8), [FLAT], "kernel"),
    **{k: (*v, "probability") for k, v in sizes("Dropout", 0.5).items()},
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(4), [IMG], "GPU"),
    "RNNCell without a state": (lambda: nn.RNNCell(6, 5), [x(3, 6)], "not callable"),
    "LSTMCell without a state": (lambda: nn.LSTMCell(6, 5), [x(3, 6)], "not callable"),
    "GRUCell without a state": (lambda: nn.GRUCell(6, 5), [x(3, 6)], "not callable"),
}


def flat(value) -> list:
    """The tensors in whatever a layer returns."""
    if isinstance(value, (tuple, list)):
        return [one for entry in value for one in flat(entry)]
    return [value]


def run(layer: nn.Module, inputs: list, place) -> dict[str, np.ndarray]:
    """Outputs, gradients of inputs and Parameters, and buffers afterwards; and no local tensor."""
    placed = [
        tuple(place(one) for one in entry) if isinstance(entry, tuple) else place(entry)
        for entry in inputs
    ]
    wanted = [one.requires_grad_() for one in flat(placed) if one.is_floating_point()]
    outputs = flat(layer(*placed))
    loss = [
        (out * place(waves(*out.shape, seed=60 + i))).sum()
        for i, out in enumerate(outputs)
        if out.requires_grad
    ]
    if loss:
        sum(loss).backward()
    found = {f"output {i}": out for i, out in enumerate(outputs)}
    found.update({f"input {i}": one.grad for i, one in enumerate(wanted)})
    found.update({f"gradient {path}": weight.grad for path, weight in layer.named_parameters()})
    found.update({f"buffer {path}": value for path, value in layer.named_buffers()})
    return {path: logical(value) for path, value in found.items() if value is not None}


def built_in_a_scope(make, P, sbp) -> nn.Module:
    """With the numbers of a local one, read as a global checkpoint."""
    with global_scope(P, sbp, unsplittable="broadcast"):
        layer = make()
    assert local_names(layer) == []
    state = fill(make()).state_dict()
    layer.load_state_dict({path: value.to_global(P, B) for path, value in state.items()})
    return layer


def migrated(make, P, sbp) -> nn.Module:
    return local_to_global(fill(make()), P, sbp, unsplittable="broadcast")


@pytest.mark.parametrize("way", [built_in_a_scope, migrated], ids=["built", "migrated"])
@pytest.mark.parametrize("sbp", [B, S0], ids=["B", "S0"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_the_local_one_does(P, rank, name, sbp, way):
    make, inputs = LAYERS[name]
    layer = way(make, P, sbp)
    assert local_names(layer) == []
    for weight in layer.parameters():
        splittable = weight.shape[0] >= len(P.ranks)
        assert weight.sbp == ((sbp,) if splittable else (B,))
    found = run(layer, inputs, lambda array: tensor(array).to_global(P, B))
    assert local_names(layer) == []
    if rank == 0:
        assert_all_close(found, run(fill(make()), inputs, tensor))


@pytest.mark.parametrize("name", LOCAL_FAILS)
def test_a_layer_that_oneflow_itself_cannot_run_on_cpu(rank, name):
    """Should OneFlow learn it, this says so, and the layer moves to the table."""
    make, inputs, reason = LOCAL_FAILS[name]
    if rank == 0:
        with pytest.raises(Exception, match=reason):
            run(make(), inputs, tensor)


# What OneFlow 0.9.0 cannot do with global tensors: constructor, inputs, its error.
GLOBAL_FAILS = {
    "BatchNorm1d without weights": (lambda: nn.BatchNorm1d(4, affine=False), [SEQ], "'device'"),
    "BCEWithLogitsLoss with pos_weight, a plain attribute": (
        lambda: nn.BCEWithLogitsLoss(pos_weight=tensor(FLAT[0] + 2)),
        [FLAT, PROBABILITIES],
        "inconsistent attributes",
    ),
}


@pytest.mark.parametrize("way", ["OneFlow's own", "ours"])
@pytest.mark.parametrize("name", GLOBAL_FAILS)
def test_a_layer_that_oneflow_itself_cannot_run_globally(P, name, way):
    make, inputs, reason = GLOBAL_FAILS[name]
    layer = make().to_global(P, B) if way != "ours" else local_to_global(make(), P, B)
    with pytest.raises(RuntimeError, match=reason):
        run(layer, inputs, lambda array: tensor(array).to_global(P, B))


# Not in the tables, by reason.
LEFT_OUT = {
    "containers and bases, see test_containers.py": """
        Module ModuleList ModuleDict ParameterList ParameterDict Sequential RNNBase RNNCellBase""",
    "they read a data set": """
        COCOReader CoinFlip CropMirrorNormalize GPTIndexedBinDataReader OFRecordBytesDecoder
        OFRecordImageDecoder OFRecordImageDecoderRandomCrop OFRecordRawDecoder OFRecordReader
        OFRecordImageGpuDecoderRandomCropResize OfrecordRawDecoder OfrecordReader OneRecReader
        RawReader""",
    "OneFlow has no CPU kernel": "DistributedPariticalFCSample",
    "asks for .device, which no global tensor has": "AllReduce",
    "no backward, in OneFlow either": "FakeQuantization Quantization",
}


def test_no_layer_is_forgotten():
    seen = {type(make()) for make, *_ in [*LAYERS.values(), *LOCAL_FAILS.values()]}
    seen |= {getattr(nn, name) for name in " ".join(LEFT_OUT.values()).split()}
    kinds = [kind for kind in vars(nn).values() if isinstance(kind, type)]
    assert {kind for kind in kinds if issubclass(kind, nn.Module)} <= seen

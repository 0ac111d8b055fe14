"""Which device is measured on, and what is said where it cannot be; no GPU is needed for that."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest

from benchmarks.harness.devices import (
    Device,
    about_capability,
    choose,
    is_missing_kernel,
    memory_used,
    why_not,
)

pytestmark = pytest.mark.ranks(1)


def test_the_cpu_is_always_there():
    device = choose("cpu", ranks=64)
    assert device == Device("cpu")
    assert device.placement(1) == flow.placement("cpu", [0])
    assert device.used() is None


@pytest.mark.parametrize(
    ("built", "count", "ranks", "words"),
    [
        (False, 0, 1, "built without"),
        (True, 0, 1, "no device can be used"),
        (True, 1, 2, "2 ranks need 2 devices and there is 1"),
        (True, 2, 4, "4 ranks need 4 devices and there are 2"),
    ],
)
def test_why_cuda_cannot_be_measured_on(built, count, ranks, words):
    assert words in why_not(built, count, ranks)


@pytest.mark.parametrize(("count", "ranks"), [(1, 1), (2, 1), (4, 4)])
def test_enough_devices(count, ranks):
    assert why_not(True, count, ranks) is None


@pytest.mark.parametrize("capability", [(6, 0), (7, 0), (8, 0), (8, 6)])
def test_devices_with_kernels(capability):
    said = about_capability(capability)
    assert f"compute capability {capability[0]}.{capability[1]} found" in said
    assert said.endswith("for which the wheel has kernels")


@pytest.mark.parametrize("capability", [(5, 2), (8, 9), (9, 0), (12, 0)])
def test_devices_without(capability):
    said = about_capability(capability)
    assert f"compute capability {capability[0]}.{capability[1]} found" in said
    assert "6.0 to 8.6 and no PTX, so that here only copies work" in said


def test_an_error_that_says_no_more_than_that_a_kernel_is_missing():
    text = "CUDA error: no kernel image is available for execution on the device"
    assert is_missing_kernel(text)
    assert not is_missing_kernel("out of memory")
    device = Device("cuda", ((9, 0),))
    explained = device.explain(RuntimeError(text))
    assert explained.startswith("a kernel is missing. compute capability 9.0 found")
    assert text in explained
    assert device.explain(RuntimeError("out of memory")) is None
    assert Device("cpu").explain(RuntimeError(text)) is None


def test_the_memory_that_nvidia_smi_prints():
    assert memory_used("1024\n3\n\n") == [1024.0, 3.0]


def test_to_synchronize_is_to_wait_for_all_that_was_asked_for():
    """On the CPU; afterwards a read of the result has nothing left to wait for."""
    x = flow.tensor(np.ones((256, 256), np.float32))
    y = x
    for _ in range(50):
        y = flow.matmul(y, x) / 256
    Device("cpu").synchronize()
    np.testing.assert_allclose(y.numpy(), np.ones((256, 256)), rtol=1e-4)


def test_a_copy_shares_nothing():
    x = flow.tensor(np.zeros(4, np.float32))
    copy = Device("cpu").copy(x)
    x[0] = 1
    assert copy.numpy().tolist() == [0, 0, 0, 0]

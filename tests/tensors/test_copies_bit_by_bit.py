"""Copies are equal if every bit is: what adds up to the same, or compares equal, still differs."""

from __future__ import annotations

import numpy as np
import oneflow as flow
import pytest

from tests.helpers.support import S0, B, as_array, assert_global, counted, parameter, part
from tests.helpers.ways import BY_SUFFIX, TWO_WAYS, convert, sbp_of

ENDS = ("", "_s0")
pytestmark = pytest.mark.ranks(2, 4)


def assert_bits(found, array: np.ndarray, placement, sbp) -> None:
    """NaN, and zeros of either sign, are told apart."""
    own = as_array(found.to_local())
    assert own.tobytes() == part(array, placement, [sbp], flow.env.get_rank()).tobytes()


def nans(kind: type, payload: int) -> np.ndarray:
    """Eight NaN of this payload, which no arithmetic tells from those of another one."""
    if kind is np.float64:
        return np.full(8, 0x7FF8_0000_0000_0000 + payload, np.uint64).view(kind)
    return np.full(8, 0x7FC0_0000 + payload, np.uint32).view(kind)


@TWO_WAYS
def test_the_payload_of_nan(P, rank, way):
    kinds = {"f4": np.float32, "f8": np.float64}
    values = {}
    for name, kind in kinds.items():
        for end in ENDS:
            values[f"{name}_differs{end}"] = parameter(nans(kind, 1 + rank))
            values[f"{name}_equal{end}"] = parameter(nans(kind, 7))
    m = convert(way, values, P, BY_SUFFIX)
    for name in values:
        array = nans(kinds[name[:2]], 1 if "differs" in name else 7)
        assert_bits(getattr(m, name), array, P, sbp_of(name))


@TWO_WAYS
def test_the_sign_of_zero(P, rank, way):
    dtypes = {"f4": flow.float32, "f8": flow.float64, "f2": flow.float16, "bf": flow.bfloat16}
    firsts = {"plus": 0.0, "minus": -0.0}
    values = {}
    for which, first in firsts.items():
        array = np.full(7, first if rank == 0 else -first, np.float32)
        for name, dtype in dtypes.items():
            for end in ENDS:
                values[f"{name}_{which}{end}"] = parameter(array, dtype)
    m = convert(way, values, P, BY_SUFFIX)
    for name in values:
        found = getattr(m, name)
        dtype, which = name.split("_")[:2]
        assert found.dtype == dtypes[dtype]
        signs = np.signbit(as_array(found.to_local()))
        assert signs.size > 0
        assert (signs == np.signbit(firsts[which])).all(), name


def swapped(array: np.ndarray, here: bool) -> np.ndarray:
    """With its first and its last number exchanged: the same sum, maximum and histogram."""
    array = array.copy()
    if here:
        array.flat[0], array.flat[-1] = array.flat[-1], array.flat[0]
    return array


def balanced(array: np.ndarray, here: bool) -> np.ndarray:
    """One more here, one less there: the same sum, and the same ends."""
    array = array.copy()
    array.flat[2] += here
    array.flat[-3] -= here
    return array


@TWO_WAYS
@pytest.mark.parametrize("change", [swapped, balanced])
def test_the_same_sum(P, rank, world, change, way):
    arrays = {"f4": counted(9, 5), "i8": counted(9, 5, dtype=np.int64)}
    values = {
        name + end: parameter(change(array, rank == world - 1), requires_grad=name == "f4")
        for name, array in arrays.items()
        for end in ENDS
    }
    m = convert(way, values, P, BY_SUFFIX)
    for name in values:
        assert_global(getattr(m, name), arrays[name[:2]], P, sbp_of(name))


@TWO_WAYS
@pytest.mark.parametrize("sbp", [B, S0], ids=str)
def test_two_tensors_with_each_others_contents(P, rank, world, sbp, way):
    """The same bytes in all, in another place."""
    here = rank == world - 1
    values = {
        "a": parameter(counted(5, 3, start=100 * here)),
        "b": parameter(counted(5, 3, start=100 * (not here))),
        "whole": parameter(counted(4, 4)),
    }
    m = convert(way, values, P, sbp)
    assert_global(m.a, counted(5, 3), P, sbp)
    assert_global(m.b, counted(5, 3, start=100), P, sbp)
    assert_global(m.whole, counted(4, 4), P, sbp)


# As the first rank has it, and as the last one does: one bit apart, where a cast would lose it.
ONE_BIT = {
    "f8": (np.float64, 1.0, np.nextafter(1.0, 2.0)),
    "f4": (np.float32, 1.0, np.nextafter(np.float32(1), np.float32(2))),
    "i8": (np.int64, 2**62, 2**62 + 1),
    "i4": (np.int32, 2**24, 2**24 + 1),
    "i1": (np.int8, -128, -127),
    "u1": (np.uint8, 254, 255),
    "b1": (np.bool_, False, True),
}
# Those that no block or word of a digest divides, and one that they do.
LENGTHS = (7, 64, 1027)


@TWO_WAYS
def test_one_bit_at_the_end(P, rank, world, way):
    values, expected = {}, {}
    for name, (kind, first, other) in ONE_BIT.items():
        for length in LENGTHS:
            for end in ENDS:
                array = np.full(length, first, kind)
                expected[f"{name}_{length}{end}"] = array.copy()
                array[-1] = other if rank == world - 1 else first
                options = {"requires_grad": name.startswith("f")}
                values[f"{name}_{length}{end}"] = parameter(array, **options)
    m = convert(way, values, P, BY_SUFFIX)
    for name, array in expected.items():
        assert_bits(getattr(m, name), array, P, sbp_of(name))


@TWO_WAYS
def test_the_last_bit_of_a_half_type(P, rank, world, way):
    values = {}
    for name, dtype, step in (("f2", flow.float16, 2**-10), ("bf", flow.bfloat16, 2**-7)):
        for end in ENDS:
            array = np.ones(9, np.float32)
            array[-1] += step * (rank == world - 1)
            values[name + end] = parameter(array, dtype)
    dtypes = {name: value.dtype for name, value in values.items()}
    m = convert(way, values, P, BY_SUFFIX)
    for name in values:
        assert getattr(m, name).dtype == dtypes[name]
        assert_global(getattr(m, name), np.ones(9, np.float32), P, sbp_of(name))

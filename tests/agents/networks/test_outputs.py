"""How outputs of networks are compared: by their largest value, and by the narrowest type inside."""

from __future__ import annotations

import numpy as np
import pytest

from agents.networks.outputs import array_of, difference, tensor_of

_NONE = float("inf")


def test_outputs_are_compared_by_their_largest_value() -> None:
    values = np.array([1.0, -200.0])
    assert difference([values + 0.1], [values]) == pytest.approx(0.1 / 200)
    assert difference([values], [values, values]) == _NONE
    assert difference([values[:1]], [values]) == _NONE
    assert difference([], []) == 0.0
    assert difference([values[:0]], [values[:0]]) == 0.0


def test_an_infinity_agrees_with_itself_and_nan_with_nan() -> None:
    values = np.array([-np.inf, np.nan, np.inf, 4.0])
    assert difference([values], [values.copy()]) == 0.0
    assert difference([np.full(2, -np.inf)], [np.full(2, -np.inf)]) == 0.0
    near = values.copy()
    near[3] = 4.4
    assert difference([near], [values]) == pytest.approx(0.1)
    for place, other in ((0, np.inf), (0, -3e38), (1, 1.0), (2, np.nan), (3, np.nan)):
        wrong = values.copy()
        wrong[place] = other
        assert difference([wrong], [values]) == _NONE
        assert difference([values], [wrong]) == _NONE


def test_numbers_of_bfloat16_pass_between_torch_and_numpy() -> None:
    torch = pytest.importorskip("torch")
    import ml_dtypes

    values = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).mT
    array = array_of(values)
    assert (array.dtype, array.shape) == (np.dtype(ml_dtypes.bfloat16), (3, 2))
    assert torch.equal(tensor_of(array.copy()), values)

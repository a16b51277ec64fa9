"""Initial weights from NumPy: a seed gives the same numbers on every machine."""

import numpy as np

# The standard deviation of a standard normal truncated at two: he_normal divides by it,
# so that the truncated weights have the intended variance.
_TRUNCATED_STDDEV = 0.87962566103423978


def zeros(*shape: int) -> np.ndarray:
    """Returns float32 zeros of `shape`, the biases of every model."""
    return np.zeros(shape, np.float32)


def uniform(rng: np.random.Generator, *shape: int, limit: float) -> np.ndarray:
    """Returns float32 `shape`, uniform in [-limit, limit)."""
    return rng.uniform(-limit, limit, shape).astype(np.float32)


def glorot_uniform(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Returns float32 `shape`, uniform with variance 2 / (fan_in + fan_out).

    Source: Glorot and Bengio, "Understanding the difficulty of training deep
    feedforward neural networks", AISTATS 2010.

    Args:
      rng: The source of randomness.
      *shape: `[in, out]` of a matrix or `[height, width, in, out]` of a filter.
    """
    fan_in, fan_out = _fans(shape)
    return uniform(rng, *shape, limit=(6.0 / (fan_in + fan_out)) ** 0.5)


def he_normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Returns float32 `shape`, normal truncated at two deviations, variance 2 / fan_in.

    Source: He et al., "Delving deep into rectifiers", ICCV 2015.

    Args:
      rng: The source of randomness.
      *shape: `[in, out]` of a matrix or `[height, width, in, out]` of a filter.
    """
    fan_in, _ = _fans(shape)
    values = rng.standard_normal(shape)
    while (outside := np.abs(values) > 2.0).any():
        values[outside] = rng.standard_normal(outside.sum())
    return (values * ((2.0 / fan_in) ** 0.5 / _TRUNCATED_STDDEV)).astype(np.float32)


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Returns float32 `[rows, columns]` whose shorter side is orthonormal.

    Source: Saxe et al., "Exact solutions to the nonlinear dynamics of learning
    in deep linear neural networks", ICLR 2014.
    """
    tall = rng.standard_normal((max(rows, columns), min(rows, columns)))
    basis, triangle = np.linalg.qr(tall)
    # Without the signs, QR's result is not uniform over orthogonal matrices.
    basis = basis * np.sign(np.diag(triangle))
    return np.ascontiguousarray(basis.T if rows < columns else basis, dtype=np.float32)


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    receptive_field = int(np.prod(shape[:-2]))
    return shape[-2] * receptive_field, shape[-1] * receptive_field

"""Quadratic programs of multi-objective federated learning, in pure TensorFlow."""

from tff_algos.solvers import box_simplex, min_norm

__all__ = ["box_simplex", "min_norm"]

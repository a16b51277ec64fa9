"""Quadratic programs for federated learning, in pure TensorFlow."""

from tff_algos.solvers import box_simplex, cone, min_norm

__all__ = ["box_simplex", "cone", "min_norm"]

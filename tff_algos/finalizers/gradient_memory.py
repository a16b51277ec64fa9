"""GradMA's server update: momentum that opposes none of the remembered updates.

Luo et al., "GradMA: A Gradient-Memory-based Accelerated Federated Learning with
Alleviated Catastrophic Forgetting", CVPR 2023, arXiv 2302.14307.
"""

import collections
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators.latest_updates import MemoryDtype, checked_index
from tff_algos.aggregators.min_norm_rule import combine_rows, gram_matrix
from tff_algos.finalizers import row_ownership
from tff_algos.finalizers.row_ownership import Assignment, Ownership
from tff_algos.finite import global_norm
from tff_algos.hyperparameters import hparam, record
from tff_algos.optimizers import in_weights_dtype
from tff_algos.solvers import cone

# Rounds after which inner products are recomputed, because rounding errors of their
# updates accumulate.
_ROUNDS_PER_FRESH_GRAM = 100


class GradientMemoryState(NamedTuple):
    """The state of the finalizer.

    Attributes:
      optimizer: The state of the optimizer that applies the corrected momentum.
      momentum: The corrected momentum of the last round, like the trainable weights.
      rows: Remembered updates, like the trainable weights with a leading axis of m,
        each divided by its scale.
      scales: float64 [m], the scale of each row; decay updates the scales, not the
        rows.
      ownership: The rows' owners, a `row_ownership.Ownership`.
      grams: Inner products of `rows`, float64 [m, m] for each quadratic program.
      num_rounds: int32 [].
    """

    optimizer: Any
    momentum: Any
    rows: Any
    scales: Any
    ownership: Any
    grams: Any
    num_rounds: Any


@record
class GradientMemory:
    """The settings of the memory.

    Attributes:
      num_clients: N, the number of all clients, >= 1.
      memory_size: m, the number of clients whose updates are remembered, >= 0.
      server_momentum: beta_1, in [0, 1).
      memory_decay: beta_2, factor on remembered updates after every round, in [0, 1].
      qp_margin: rho, in (-1, 1), the smallest inner product of the corrected momentum
        with a remembered update, divided by the norms of that and of the momentum.
      qp_scope: Whether the momentum is corrected as one vector ("global") or each
        tensor by itself ("per_tensor").
      memory_dtype: The dtype of the remembered updates; None for the weights' dtype.
    """

    num_clients: Annotated[int, hparam(low=1)]
    memory_size: Annotated[int, hparam(low=0)]
    server_momentum: Annotated[float, hparam(low=0, below=1)]
    memory_decay: Annotated[float, hparam(low=0, high=1)]
    qp_margin: Annotated[float, hparam(above=-1, below=1)] = 0.0
    qp_scope: Annotated[cone.QpScope, hparam()] = "global"
    memory_dtype: Annotated[MemoryDtype | None, hparam()] = None

    def groups(self, count: int) -> list[list[int]]:
        """Returns the indices of the tensors in each quadratic program, of `count`."""
        if self.qp_scope == "global":
            return [list(range(count))]
        return [[number] for number in range(count)]


def build_gradient_memory_finalizer(
    server_optimizer: tff.learning.optimizers.Optimizer,
    weights_type: tff.Type,
    memory: GradientMemory,
) -> tff.learning.templates.FinalizerProcess:
    """Builds the finalizer that corrects momentum by a memory of clients' updates.

    A round with updates delta_k of mean u has these steps: rows of the memory D are
    assigned to clients (`row_ownership`); D_k = delta_k for new owners, else D_k +
    delta_k; m = beta_1 * (last corrected m) + u; the corrected m is the vector nearest
    to m whose inner product with every row is at least rho * ||m|| * ||row||; the
    optimizer applies the corrected m; all rows are multiplied by beta_2.

    Rows that have decayed to less than 1e-12 of the longest are left out, with a
    `memory_decay` of 0.5 those of clients that have been absent for 40 rounds.

    A round whose result is not finite is rejected and changes nothing. A round with a
    `client_index` outside [0, N) fails.

    Args:
      server_optimizer: Applies the corrected momentum; in the paper SGD of rate eta_g.
      weights_type: The type of `tff.learning.models.ModelWeights`.
      memory: The settings of the memory.

    Returns:
      A process whose state is a `GradientMemoryState` and whose update is the result of
      `aggregators.MeanAndRowsFactory`. Measurements: `num_rejected_rounds` (int32),
      `update_norm` and `base_update_norm` (float32, the momentum's norm after and
      before its correction), `qp_fallbacks` (int32, programs whose solution was not
      accepted, which leaves the momentum uncorrected), `qp_residual` (float32, the
      largest), `qp_iterations` (int32, over all programs), `num_active_rows` (int32,
      active constraints), `num_memory_rows` (int32, rows with an owner). Its
      hyperparameters are those of `server_optimizer`.
    """
    trainable_type = weights_type.trainable
    specs = tff.types.type_to_tf_tensor_specs(trainable_type)
    num_tensors = len(tf.nest.flatten(specs))

    @tff.tensorflow.computation
    def first_state():
        zeros = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)
        rows = tf.nest.map_structure(
            lambda s: tf.zeros(
                [memory.memory_size, *s.shape], memory.memory_dtype or s.dtype
            ),
            specs,
        )
        size = memory.memory_size
        grams = tuple(
            tf.zeros([size, size], tf.float64) for _ in memory.groups(num_tensors)
        )
        return GradientMemoryState(
            in_weights_dtype(server_optimizer).initialize(specs),
            zeros,
            rows,
            tf.ones([size], tf.float64),
            row_ownership.nobody(size, memory.num_clients),
            grams,
            tf.constant(0),
        )

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(first_state, tff.SERVER)

    state_type = first_state.type_signature.result
    update_type = _update_type(specs)

    @tff.tensorflow.computation(state_type, weights_type, update_type)
    @tf.function
    def apply(state, weights, update):
        return _round(server_optimizer, memory, state, weights, update)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.SERVER),
        tff.FederatedType(update_type, tff.SERVER),
    )
    def next_fn(state, weights, update):
        state, weights, measurements = tff.federated_map(
            apply, (state, weights, update)
        )
        return tff.templates.MeasuredProcessOutput(state, weights, measurements)

    @tff.tensorflow.computation(state_type)
    def get_hparams(state):
        return server_optimizer.get_hparams(state.optimizer)

    @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
    def set_hparams(state, hparams):
        changed = server_optimizer.set_hparams(state.optimizer, hparams)
        return state._replace(optimizer=changed)

    return tff.learning.templates.FinalizerProcess(
        initialize, next_fn, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams
    )


def _update_type(specs: Any) -> tff.Type:
    """Returns the type of `MeanAndRowsFactory`'s result for tensors like `specs`."""
    many = tf.nest.map_structure(
        lambda s: tf.TensorSpec([None, *s.shape], s.dtype), specs
    )
    return tff.types.tensorflow_to_type(
        collections.OrderedDict(
            mean=specs,
            rows=collections.OrderedDict(
                client_index=tf.TensorSpec([None], tf.int32),
                weight=tf.TensorSpec([None], tf.float32),
                update=many,
            ),
        )
    )


def _round(optimizer, memory: GradientMemory, state, weights, update):
    """Returns the state, weights and measurements after a round."""
    gathered = update["rows"]
    clients = checked_index(gathered["client_index"], memory.num_clients)
    ownership, assignment = row_ownership.assign(
        state.ownership, clients, gathered["weight"] > 0
    )
    momentum = tf.nest.map_structure(
        lambda old, new: memory.server_momentum * old + new,
        state.momentum,
        update["mean"],
    )
    remembered, products = _remember(
        memory, state, ownership, assignment, gathered["update"], momentum
    )
    corrected, measurements = _correct(memory, remembered, momentum, products)
    optimizer_state, trainable = in_weights_dtype(optimizer).next(
        state.optimizer, weights.trainable, corrected
    )
    norm = global_norm(corrected)
    finite = tf.math.is_finite(norm)
    new_state = remembered._replace(
        optimizer=optimizer_state,
        momentum=corrected,
        scales=remembered.scales * memory.memory_decay,
        num_rounds=state.num_rounds + 1,
    )
    # Not tf.where, which would copy every row.
    state, trainable = tf.cond(
        finite,
        lambda: (new_state, trainable),
        lambda: (state, weights.trainable),
    )
    measurements = collections.OrderedDict(
        num_rejected_rounds=tf.cast(tf.logical_not(finite), tf.int32),
        update_norm=tf.cast(norm, tf.float32),
        **measurements,
    )
    weights = tff.learning.models.ModelWeights(trainable, weights.non_trainable)
    return state, weights, measurements


def _remember(
    memory: GradientMemory,
    state: GradientMemoryState,
    ownership: Ownership,
    assignment: Assignment,
    updates: Any,
    momentum: Any,
) -> tuple[GradientMemoryState, list[tf.Tensor]]:
    """Returns the state with this round's updates in their rows, and inner products.

    These are the rows' inner products with the momentum, float64 [m] for each program;
    the pass over the rows that updates the Gram matrix computes them as well.
    """
    placed = assignment.rows >= 0
    slots = tf.boolean_mask(assignment.rows, placed)
    kept = tf.where(
        tf.boolean_mask(assignment.is_new, placed),
        tf.constant(0.0, tf.float64),
        tf.gather(state.scales, slots),
    )

    def with_updates(rows, update):
        if update.shape[1:].num_elements() == 0:
            return rows  # TensorFlow cannot scatter rows of nothing.
        new = tf.boolean_mask(update, placed)
        old = tf.cast(tf.gather(rows, slots), new.dtype)
        shares = tf.reshape(tf.cast(kept, new.dtype), [-1] + [1] * (len(new.shape) - 1))
        new += shares * old
        return tf.tensor_scatter_nd_update(
            rows, slots[:, tf.newaxis], tf.cast(new, rows.dtype)
        )

    rows = tf.nest.map_structure(with_updates, state.rows, updates)
    fresh = tf.equal(state.num_rounds % _ROUNDS_PER_FRESH_GRAM, 0)
    renewed = tf.cond(fresh, lambda: tf.range(memory.memory_size), lambda: slots)
    flat = list(zip(tf.nest.flatten(rows), tf.nest.flatten(momentum), strict=True))
    products = [
        tf.add_n([_products(*flat[k], renewed) for k in tensors])
        for tensors in memory.groups(len(flat))
    ]
    grams = tuple(
        _with_products(gram, renewed, with_rows[:-1])
        for gram, with_rows in zip(state.grams, products, strict=True)
    )
    scales = tf.tensor_scatter_nd_update(
        state.scales, slots[:, tf.newaxis], tf.ones_like(kept)
    )
    state = state._replace(rows=rows, scales=scales, ownership=ownership, grams=grams)
    return state, [with_rows[-1] * scales for with_rows in products]


def _products(rows: tf.Tensor, vector: tf.Tensor, slots: tf.Tensor) -> tf.Tensor:
    """Returns inner products of all rows with some rows and, last, with a vector.

    Args:
      rows: [m, ...].
      vector: [...].
      slots: The indices of these rows, int32 [k].

    Returns:
      float64 [k + 1, m].
    """
    some = tf.cast(tf.gather(rows, slots), vector.dtype)
    return gram_matrix(rows, tf.concat([some, vector[tf.newaxis]], axis=0))


def _with_products(gram: tf.Tensor, slots: tf.Tensor, products: tf.Tensor) -> tf.Tensor:
    """Returns the Gram matrix with some of its rows and columns replaced."""
    at = slots[:, tf.newaxis]
    gram = tf.tensor_scatter_nd_update(gram, at, products)
    gram = tf.tensor_scatter_nd_update(tf.transpose(gram), at, products)
    return tf.transpose(gram)


def _correct(
    memory: GradientMemory,
    state: GradientMemoryState,
    momentum: Any,
    products: Sequence[tf.Tensor],
) -> tuple[Any, collections.OrderedDict[str, tf.Tensor]]:
    """Returns the corrected momentum, which opposes no row, and measurements."""
    vectors = tf.nest.flatten(momentum)
    rows = tf.nest.flatten(state.rows)
    owned = state.ownership.owners >= 0
    corrected = list(vectors)
    solutions = []
    programs = zip(memory.groups(len(rows)), state.grams, products, strict=True)
    for tensors, gram, with_momentum in programs:
        gram *= state.scales[:, tf.newaxis] * state.scales
        square = tf.add_n([_squared_norm(vectors[k]) for k in tensors])
        solution = cone.solve(gram, with_momentum, square, memory.qp_margin, owned)
        for k in tensors:
            coefficients = solution.multipliers * state.scales
            moved = vectors[k] + _combine(coefficients, rows[k], vectors[k])
            # Leaves a momentum that needs no correction bit-identical.
            active = tf.reduce_any(solution.multipliers > 0)
            corrected[k] = tf.where(active, moved, vectors[k])
        solutions.append(solution)
    measurements = collections.OrderedDict(
        base_update_norm=tf.cast(global_norm(vectors), tf.float32),
        qp_fallbacks=_total(solutions, lambda s: tf.logical_not(s.accepted)),
        qp_residual=tf.cast(tf.reduce_max([s.residual for s in solutions]), tf.float32),
        qp_iterations=_total(solutions, lambda s: s.iterations),
        num_active_rows=_total(
            solutions, lambda s: tf.math.count_nonzero(s.multipliers)
        ),
        num_memory_rows=tf.math.count_nonzero(owned, dtype=tf.int32),
    )
    return tf.nest.pack_sequence_as(momentum, corrected), measurements


def _total(solutions: Sequence[cone.ConeSolution], count) -> tf.Tensor:
    return tf.add_n([tf.cast(count(solution), tf.int32) for solution in solutions])


def _squared_norm(vector: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(tf.cast(vector, tf.float64), [-1])
    return tf.tensordot(flat, flat, 1)


def _combine(multipliers: tf.Tensor, rows: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Returns the sum of the rows times their multipliers, in the dtype of `like`."""
    return combine_rows(multipliers, tf.cast(rows, like.dtype))

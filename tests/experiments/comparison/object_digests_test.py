"""Digests of objects differ with what they do, and with nothing else."""

import functools
import os
import subprocess
import sys
import textwrap
import types

import attrs
import numpy as np
import pytest

from tff_algos.experiments import catalog
from tff_algos.experiments.comparison.object_digests import digest

CODE = """
    import functools
    import pathlib
    import attrs
    import numpy as np
    import tensorflow as tf
    import tensorflow_federated as tff

    STEPS = 3
    RATE = np.float32(0.5)

    def scale(x, by=2.0):
        return by * x

    @functools.cache
    def kept(x):
        return x - 6

    @tf.function
    def traced(x):
        return x - 7

    class Named:
        def __init__(self, level):
            self.level = level

        def call(self, x):
            return self.level + x

    @attrs.frozen
    class Options:
        rate: float = 0.1

    NAMED = Named(5)
    FILE = pathlib.Path("a.csv")
    OPTIMIZER = tff.learning.optimizers.build_sgdm(0.125)
    TENSOR = tf.constant(4.5)

    class Base:
        def apply(self, x):
            return x + 1

    class Rule(Base):
        LEVEL = 8

        @classmethod
        def made(cls):
            return cls()

    def outer(factor):
        def inner(x):
            found = traced(kept(Rule.made().apply(x))) * RATE
            found = NAMED.call(found).metrics, FILE, OPTIMIZER, TENSOR
            return factor * scale(found) + STEPS + Options().rate
        return inner

    build = functools.partial(outer(0.5), 1.0)
"""


def _build(code=CODE):
    """Returns what a cell of a notebook with this code defines."""
    scope = {"__name__": "notebook"}
    exec(textwrap.dedent(code), scope)  # noqa: S102
    return scope["build"]


def test_the_same_code_has_the_same_digest_with_other_comments_and_variables():
    commented = CODE.replace("STEPS = 3", "# Three are enough.\n    STEPS = 3")
    assert digest(_build(commented)) == digest(_build())
    # The name of an attribute that the code reads.
    other = CODE.replace("STEPS = 3", "STEPS = 3\n    metrics = 7")
    assert digest(_build(other)) == digest(_build())


def test_structures_of_the_same_values_differ():
    one, other = {"a": 1}, {"a": 2}
    values = [
        ((1,), 2),
        ((1, 2),),
        [one, other, one],
        [one, other, other],
        [one, other],
        np.array([one], object),
        np.array([other], object),
    ]
    assert len(set(map(digest, values))) == len(values)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("by * x", "by + x"),
        ("Named(5)", "Named(6)"),
        ("self.level + x", "self.level - x"),
        ("a.csv", "b.csv"),
        ("build_sgdm(0.125)", "build_sgdm(0.25)"),
        ("constant(4.5)", "constant(5.5)"),
        ("x - 6", "x - 5"),
        ("x - 7", "x - 5"),
        ("float32(0.5)", "float32(0.25)"),
        ("LEVEL = 8", "LEVEL = 9"),
        ("return cls()", "return cls"),
        ("by=2.0", "by=2.5"),
        ("x + 1", "x + 2"),
        ("outer(0.5)", "outer(0.25)"),
        ("STEPS = 3", "STEPS = 4"),
        ("rate: float = 0.1", "rate: float = 0.5"),
        (", 1.0)", ", 2.0)"),
    ],
)
def test_a_change_anywhere_in_the_module_changes_it(old, new):
    assert CODE.count(old) == 1
    assert digest(_build(CODE.replace(old, new))) != digest(_build())


def test_other_data_and_other_defaults_change_it():
    recipe = catalog.get("fedavg", catalog.ALGORITHMS)
    changed = attrs.evolve(recipe, defaults={**recipe.defaults, "total_rounds": 7})
    assert digest(changed) != digest(recipe) == digest(attrs.evolve(recipe))
    # Of many settings, any.
    many = {f"setting_{number}": 0.5 * number for number in range(9)}
    digests = {
        digest(attrs.evolve(recipe, defaults=many | {name: 7.0})) for name in many
    }
    assert len(digests) == len(many)
    one, other = np.zeros(3), np.ones(3)
    load = functools.partial(lambda x: x, one)
    assert digest(load) != digest(functools.partial(lambda x: x, other))
    assert digest(load) == digest(functools.partial(lambda x: x, one.copy()))


def test_functions_that_call_each_other_have_one():
    code = """
        def even(n):
            return n == 0 or odd(n - 1)

        def odd(n):
            return n != 0 and even(n - 1)

        build = even
    """
    assert digest(_build(code)) != digest(_build(code.replace("n != 0", "n > 0")))


def test_it_is_the_same_in_every_process():
    # A set's order differs from process to process, and so do numbers that attrs writes
    # into its methods.
    program = (
        "import tasks\n"
        "from tff_algos.experiments import catalog\n"
        "from tff_algos.experiments.comparison.object_digests import digest\n"
        "print(digest(lambda x: x in {'a', 'b', 'c', 'd'}))\n"
        "print(digest(tasks.get('csv:people.csv')))\n"
        "print(*map(digest, catalog.ALGORITHMS.values()))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(2)
    }
    assert len(found) == 1


def test_what_is_not_known_counts_by_its_type():
    assert digest(types.SimpleNamespace(a=1)) == digest(types.SimpleNamespace(a=2))

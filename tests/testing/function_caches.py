"""TensorFlow's caches of traced functions, which outlive what they were traced for."""

import gc

from tff_algos import compat  # noqa: F401  # isort: skip

from tensorflow.core.function.polymorphism.function_cache import FunctionCache


def forget_graphs() -> None:
    """Forgets what each `tf.function` was traced to within graphs.

    A function of a module, such as those of TFF's models without metrics, otherwise keeps
    all graphs that ever called it. No call finds these traces again, because TFF makes
    another graph for each computation.
    """
    for cache in [each for each in gc.get_objects() if isinstance(each, FunctionCache)]:
        for context, function_type in list(cache._primary):
            if context.context.parent_graph is not None:
                del cache._primary[context, function_type]
                cache._dispatch_dict.pop(context, None)

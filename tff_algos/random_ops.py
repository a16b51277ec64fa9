"""TensorFlow's ops that draw random numbers and keep a state."""

# Each execution draws other numbers; `tf.random.stateless_*` are not among them.
RANDOM_OPS = frozenset(
    [
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    ]
)

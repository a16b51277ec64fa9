"""Writes small files of federated examples, in the form of TFF's own."""

import contextlib
import pathlib
import sqlite3
from collections.abc import Mapping, Sequence

import tensorflow as tf

# One value, bytes or an integer, or many integers or floats.
Features = Mapping[str, bytes | int | Sequence[int] | Sequence[float]]


def write(
    path: pathlib.Path, splits: Mapping[str, Mapping[str, Sequence[Features | bytes]]]
) -> None:
    """Writes split -> client -> examples; bytes are records as they are."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TABLE examples (split_name TEXT, client_id TEXT, "
            "serialized_example_proto BLOB)"
        )
        connection.execute(
            "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, "
            "num_examples INTEGER)"
        )
        for split, clients in splits.items():
            for client_id, examples in clients.items():
                connection.execute(
                    "INSERT INTO client_metadata VALUES (?, ?, ?)",
                    (client_id, split, len(examples)),
                )
                connection.executemany(
                    "INSERT INTO examples VALUES (?, ?, ?)",
                    [(split, client_id, _serialized(example)) for example in examples],
                )
        connection.commit()


def _serialized(example: Features | bytes) -> bytes:
    if isinstance(example, bytes):
        return example
    features = {name: _feature(value) for name, value in example.items()}
    return tf.train.Example(
        features=tf.train.Features(feature=features)
    ).SerializeToString()


def _feature(value: bytes | int | Sequence[int]) -> tf.train.Feature:
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    values = [value] if isinstance(value, int) else value
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

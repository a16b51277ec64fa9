"""Reads the two comma-separated files of UCI's Adult as binary features.

Becker and Kohavi, "Adult", UCI Machine Learning Repository, 1996
(https://doi.org/10.24432/C5XW20): a line has 14 attributes and the income. The
features are those of Mohri et al., "Agnostic federated learning", ICML 2019
(https://arxiv.org/abs/1902.00146): one for each category of the 8 categorical
attributes, in the order of the dataset's own description; the 6 continuous
attributes are omitted.
"""

import csv
import types
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tasks.task import TaskError
from tff_algos import messages

_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status",
    "occupation", "relationship", "race", "sex", "capital-gain", "capital-loss",
    "hours-per-week", "native-country", "income",
)  # fmt: skip

CATEGORIES: Mapping[str, tuple[str, ...]] = types.MappingProxyType(
    {
        "workclass": (
            "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov",
            "State-gov", "Without-pay", "Never-worked",
        ),
        "education": (
            "Bachelors", "Some-college", "11th", "HS-grad", "Prof-school",
            "Assoc-acdm", "Assoc-voc", "9th", "7th-8th", "12th", "Masters", "1st-4th",
            "10th", "Doctorate", "5th-6th", "Preschool",
        ),
        "marital-status": (
            "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed",
            "Married-spouse-absent", "Married-AF-spouse",
        ),
        "occupation": (
            "Tech-support", "Craft-repair", "Other-service", "Sales",
            "Exec-managerial", "Prof-specialty", "Handlers-cleaners",
            "Machine-op-inspct", "Adm-clerical", "Farming-fishing",
            "Transport-moving", "Priv-house-serv", "Protective-serv", "Armed-Forces",
        ),
        "relationship": (
            "Wife", "Own-child", "Husband", "Not-in-family", "Other-relative",
            "Unmarried",
        ),
        "race": (
            "White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black",
        ),
        "sex": ("Female", "Male"),
        "native-country": (
            "United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany",
            "Outlying-US(Guam-USVI-etc)", "India", "Japan", "Greece", "South", "China",
            "Cuba", "Iran", "Honduras", "Philippines", "Italy", "Poland", "Jamaica",
            "Vietnam", "Mexico", "Portugal", "Ireland", "France",
            "Dominican-Republic", "Laos", "Ecuador", "Taiwan", "Haiti", "Columbia",
            "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia",
            "El-Salvador", "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands",
        ),
    }
)  # fmt: skip

NUM_FEATURES = sum(map(len, CATEGORIES.values()))

_UNKNOWN = "?"
_LABELS = types.MappingProxyType({"<=50K": 0, ">50K": 1})


def feature(attribute: str, category: str) -> int:
    """Returns the index of the feature for `attribute` being `category`."""
    return _FIRST_FEATURES[attribute] + CATEGORIES[attribute].index(category)


def _first_features() -> Mapping[str, int]:
    sizes = [len(categories) for categories in CATEGORIES.values()]
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    return dict(zip(CATEGORIES, starts, strict=True))


_FIRST_FEATURES = _first_features()


def read(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads one of the files, `adult.data` or `adult.test`.

    Empty lines and lines that start with "|" are skipped; the period at the end of the
    incomes in `adult.test` is optional.

    Returns:
      Features, uint8 [n, 99]: 1 for the category of each attribute, all 0 for "?";
      labels, int32 [n], 1 for an income above 50,000 dollars.

    Raises:
      TaskError: If the file cannot be read or a line is invalid.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            people = [_person(number, row) for number, row in _rows(file)]
        if not people:
            raise ValueError("it has no lines of people")
    # An invalid line, a file that is not text, or a missing file.
    except (OSError, ValueError, csv.Error) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise TaskError(
            f"{path} is not a file of UCI's Adult: {reason}; replace it, remove it for "
            "--data=tff to download it anew, or use --data=generated."
        ) from error
    features = np.zeros((len(people), NUM_FEATURES), np.uint8)
    for row, (present, _) in zip(features, people, strict=True):
        row[present] = 1
    return features, np.array([label for _, label in people], np.int32)


def _rows(lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields the line numbers, from 1, and the columns of all people."""
    rows = csv.reader(lines, skipinitialspace=True)
    for row in rows:
        if any(row) and not row[0].startswith("|"):
            yield rows.line_num, [column.strip() for column in row]


def _person(number: int, row: Sequence[str]) -> tuple[list[int], int]:
    """Returns the indices of a person's features that are 1, and the label."""
    if len(row) != len(_COLUMNS):
        raise ValueError(f"line {number} has {len(row)} columns, not {len(_COLUMNS)}")
    person = dict(zip(_COLUMNS, row, strict=True))
    income = person["income"].removesuffix(".")
    if income not in _LABELS:
        raise ValueError(
            f"the income in line {number} is {messages.shown(person['income'])}, "
            f"not one of {', '.join(_LABELS)}"
        )
    present = []
    for attribute, categories in CATEGORIES.items():
        category = person[attribute]
        if category in categories:
            present.append(feature(attribute, category))
        elif category != _UNKNOWN:
            raise ValueError(
                f"the {attribute} in line {number} is {messages.shown(category)}, "
                f"not one of {', '.join((*categories, _UNKNOWN))}"
            )
    return present, _LABELS[income]

"""A generated stand-in for Stack Overflow: users who write about their own topics.

All users share a made-up lexicon with word frequencies by Zipf's law and a small
grammar: a word's class determines the next word's class, a verb its preposition, an
adjective often its noun and a noun its verb. So the next word can be learned. A user
writes about two topics, whose words other users rarely use, and prefers some kinds of
sentences and some function words. Nothing is stored: a user's sentences are generated
on demand, determined by (seed, user, split).
"""

import functools
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from tasks.task import Split

DEFAULT_NUM_USERS = 140

# Word classes: number of words, share of all words that are written.
_WORD_CLASSES: Mapping[str, tuple[int, float]] = {
    "determiner": (8, 0.20),
    "preposition": (16, 0.11),
    "pronoun": (10, 0.06),
    "conjunction": (6, 0.05),
    "noun": (5200, 0.23),
    "verb": (3000, 0.15),
    "adjective": (2600, 0.08),
    "adverb": (1160, 0.04),
}
NUM_WORDS = sum(count for count, _ in _WORD_CLASSES.values())

# Words by topic: each topic has every `_NUM_TOPICS`-th word of these classes.
_TOPICAL = ("noun", "verb", "adjective")
_NUM_TOPICS = 40
_SHARE_OF_FIRST_TOPIC = 0.7
_SHARE_OF_TOPICS = 0.6

# How often a word is determined by the word before: it then has the same index.
_COMPANIONS: Mapping[tuple[str, str], float] = {
    ("adjective", "noun"): 0.5,
    ("noun", "verb"): 0.5,
    ("verb", "preposition"): 0.9,
}

_CLAUSES = (
    "determiner noun verb preposition determiner noun",
    "determiner adjective noun verb determiner noun",
    "pronoun verb determiner adjective noun",
    "pronoun adverb verb preposition determiner noun",
    "adverb , determiner noun verb preposition pronoun",
    "determiner noun preposition determiner adjective noun verb adverb",
)
_MAX_CLAUSES = 3
_SHARE_OF_QUESTIONS = 0.15
_MARKS = (".", ",", "?")

_SYLLABLES = tuple(
    onset + nucleus for nucleus in "aeiou" for onset in "tnsrldkmbpfgvhwzcjyx"
)


@attrs.frozen(kw_only=True)
class UserStyle:
    """The style of one user.

    Attributes:
      topics: Two topics, the preferred one first.
      clauses: Cumulative probabilities of the kinds of clauses.
      small_words: Cumulative probabilities of the words of each class without topics.
      num_sentences: Sentences of both splits together.
    """

    topics: tuple[int, int]
    clauses: np.ndarray
    small_words: Mapping[str, np.ndarray]
    num_sentences: int


def client_ids(num_users: int = DEFAULT_NUM_USERS) -> Sequence[str]:
    """Returns the ids of the users, in a fixed order."""
    return tuple(f"user_{user:04d}" for user in range(num_users))


@functools.cache
def vocabulary() -> Sequence[str]:
    """Returns the punctuation marks, then all words, the most frequent first.

    Frequencies are those of an average user, independent of the word before.
    """
    words = np.concatenate([*_lexicon().values()])
    frequencies = np.concatenate(
        [share * _frequencies(name) for name, (_, share) in _WORD_CLASSES.items()]
    )
    order = np.argsort(-frequencies, kind="stable")
    return (*_MARKS, *words[order].tolist())


def sentences(user: int, split: Split, seed: int = 0) -> list[bytes]:
    """Composes the sentences of one user and split.

    Args:
      user: The user's index.
      split: "train" (four fifths) or "test" (at least one sentence).
      seed: Another seed gives other users of the same language.

    Returns:
      ASCII words of `vocabulary`, separated by single spaces.
    """
    style = user_style(user, seed)
    num_test = max(1, round(style.num_sentences / 5))
    count = num_test if split == "test" else style.num_sentences - num_test
    chance = _uniform(_rng(seed, user, 1 if split == "train" else 2))
    return [_sentence(style, chance).encode() for _ in range(count)]


@functools.lru_cache(maxsize=1024)
def user_style(user: int, seed: int = 0) -> UserStyle:
    """Returns the style of a user, determined by the arguments."""
    rng = _rng(seed, user, 0)
    first, second = rng.choice(_NUM_TOPICS, 2, replace=False).tolist()
    return UserStyle(
        topics=(first, second),
        clauses=_cumulative(rng.gamma(0.8, size=len(_CLAUSES))),
        small_words={
            name: _cumulative(_zipf(count) * rng.gamma(1.0, size=count))
            for name, (count, _) in _WORD_CLASSES.items()
            if name not in _TOPICAL
        },
        num_sentences=int(min(400, 40 * (1 + rng.pareto(1.5)))),
    )


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(key))


def _zipf(count: int) -> np.ndarray:
    return 1.0 / np.arange(1, count + 1)


def _cumulative(weights: np.ndarray) -> np.ndarray:
    total = np.cumsum(weights)
    return total / total[-1]


def _uniform(rng: np.random.Generator) -> Iterator[float]:
    """Yields uniform numbers; drawn in blocks, because single draws are slow."""
    while True:
        yield from rng.random(4096).tolist()


@functools.cache
def _lexicon() -> Mapping[str, np.ndarray]:
    """Returns the words of each class, the most frequent first."""
    spellings = np.array([_spelling(number) for number in range(NUM_WORDS)])
    ends = np.cumsum([count for count, _ in _WORD_CLASSES.values()])
    return dict(zip(_WORD_CLASSES, np.split(spellings, ends[:-1]), strict=True))


def _spelling(number: int) -> str:
    """Returns the digits of `number` as syllables, unique for each number."""
    number, digit = divmod(number, len(_SYLLABLES))
    word = _SYLLABLES[digit]
    while number:
        number, digit = divmod(number - 1, len(_SYLLABLES))
        word = _SYLLABLES[digit] + word
    return word


def _frequencies(name: str) -> np.ndarray:
    """Returns the frequencies of a class's words over all topics."""
    general = np.diff(_general(name), prepend=0.0)
    if name not in _TOPICAL:
        return general
    of_topic = np.diff(_topical(name), prepend=0.0) / _NUM_TOPICS
    topical = np.repeat(of_topic, _NUM_TOPICS)
    return (1.0 - _SHARE_OF_TOPICS) * general + _SHARE_OF_TOPICS * topical


@functools.cache
def _general(name: str) -> np.ndarray:
    """Returns cumulative probabilities of a class's words over all topics."""
    return _cumulative(_zipf(_WORD_CLASSES[name][0]))


@functools.cache
def _topical(name: str) -> np.ndarray:
    """Returns cumulative probabilities of the words of any topic."""
    return _cumulative(_zipf(_WORD_CLASSES[name][0] // _NUM_TOPICS))


def _pick(cumulative: np.ndarray, chance: Iterator[float]) -> int:
    return int(np.searchsorted(cumulative, next(chance), side="right"))


def _sentence(style: UserStyle, chance: Iterator[float]) -> str:
    num_clauses = 1 + int(_MAX_CLAUSES * next(chance) ** 2)
    words: list[str] = []
    for _ in range(num_clauses):
        if words:
            words.append(_word("conjunction", None, style, chance)[1])
        previous = None
        for name in _CLAUSES[_pick(style.clauses, chance)].split():
            if name in _MARKS:
                words.append(name)
                continue
            number, word = _word(name, previous, style, chance)
            previous = name, number
            words.append(word)
    words.append("?" if next(chance) < _SHARE_OF_QUESTIONS else ".")
    return " ".join(words)


def _word(
    name: str,
    previous: tuple[str, int] | None,
    style: UserStyle,
    chance: Iterator[float],
) -> tuple[int, str]:
    """Returns a word's index in its class, and the word.

    Args:
      name: The class.
      previous: The class and the index of the previous word in the clause.
      style: The user.
      chance: Uniform numbers.
    """
    count = _WORD_CLASSES[name][0]
    if previous and next(chance) < _COMPANIONS.get((previous[0], name), 0.0):
        number = previous[1] % count
    elif name not in _TOPICAL:
        number = _pick(style.small_words[name], chance)
    elif next(chance) < _SHARE_OF_TOPICS:
        topic = style.topics[next(chance) >= _SHARE_OF_FIRST_TOPIC]
        number = topic + _NUM_TOPICS * _pick(_topical(name), chance)
    else:
        number = _pick(_general(name), chance)
    return number, str(_lexicon()[name][number])

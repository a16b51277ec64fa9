"""A generated stand-in for federated Shakespeare: speakers of a made-up language.

All speakers share a lexicon of made-up syllables and a small grammar, so the next
character can be learned. Each speaker has favorite words and kinds of sentences, a
dialect (verb endings, respelled sounds), punctuation, and verse or prose, so speakers
differ. Nothing is stored: a speaker's snippets are generated on demand, determined by
(seed, speaker, split).
"""

import functools
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from tasks.task import Split

DEFAULT_NUM_SPEAKERS = 200

_ONSETS = (
    "b", "br", "c", "cl", "d", "dr", "f", "fl", "g", "gr", "h", "k", "l", "m", "n",
    "p", "pr", "r", "s", "sh", "st", "t", "th", "tr", "v", "w",
)  # fmt: skip
_NUCLEI = ("a", "e", "i", "o", "u", "ai", "ea", "ee", "ou")
_CODAS = ("", "", "", "n", "r", "l", "s", "t", "nd", "th", "m")

# Word classes: number of words, minimum and maximum syllables, ending of every word.
_WORD_CLASSES: Mapping[str, tuple[int, int, int, str]] = {
    "noun": (220, 1, 3, ""),
    "verb": (120, 1, 2, ""),
    "adjective": (90, 1, 2, "y"),
    "adverb": (30, 1, 2, "ly"),
    "name": (40, 2, 3, "o"),
    "determiner": (6, 1, 1, ""),
    "preposition": (8, 1, 1, ""),
    "pronoun": (6, 1, 1, ""),
    "asking": (4, 1, 1, "h"),
    "cry": (6, 1, 1, "!"),
}

# Kinds of sentences. "S" is a subject or an object, "v" a verb with its ending.
_SENTENCES = (
    "S v S",
    "S v preposition S",
    "S v adverb",
    "S v S , and S v S",
    "adverb , S v S preposition S",
    "verb S , name",
    "cry S v S",
    "asking v S S ?",
    "asking verb pronoun preposition S ?",
)
_SUBJECTS = (
    "determiner noun",
    "determiner adjective noun",
    "pronoun",
    "name",
    "determiner noun preposition determiner noun",
)
_VERB_ENDINGS = ("es", "eth", "est", "en", "s", "a", "ik", "ulm")
_RESPELLINGS = (
    ("th", "d"), ("ou", "oo"), ("ea", "e"), ("sh", "zh"), ("c", "k"), ("ee", "i"),
    ("w", "v"), ("nd", "n'"), ("ai", "ay"), ("y ", "ie "), ("h", "'"), ("r", "rr"),
)  # fmt: skip
_PUNCTUATION = (".", "!", ";", " --", "...", ":")


@attrs.frozen(kw_only=True)
class SpeakerStyle:
    """The style of one speaker.

    Attributes:
      words: Cumulative probabilities of the words of each class.
      sentences: Cumulative probabilities of the kinds of sentences.
      subjects: Cumulative probabilities of the kinds of subjects.
      punctuation: Cumulative probabilities of the marks that end a sentence.
      verb_ending: The ending of verbs.
      respellings: Pairs (sound, the speaker's replacement).
      sentences_per_snippet: Mean number of sentences in a snippet.
      words_per_line: Length of a line of verse; 0 for prose.
      num_snippets: Snippets of both splits together.
    """

    words: Mapping[str, np.ndarray]
    sentences: np.ndarray
    subjects: np.ndarray
    punctuation: np.ndarray
    verb_ending: str
    respellings: tuple[tuple[str, str], ...]
    sentences_per_snippet: float
    words_per_line: int
    num_snippets: int


def client_ids(num_speakers: int = DEFAULT_NUM_SPEAKERS) -> Sequence[str]:
    """Returns the ids of the speakers, in a fixed order."""
    return tuple(f"speaker_{speaker:04d}" for speaker in range(num_speakers))


def snippets(speaker: int, split: Split, seed: int = 0) -> list[bytes]:
    """Composes the snippets of one speaker and split.

    Args:
      speaker: The speaker's index.
      split: "train" (four fifths) or "test" (at least one snippet).
      seed: Another seed gives another language and other speakers.

    Returns:
      ASCII snippets, of characters of TFF's Shakespeare vocabulary only.
    """
    style = speaker_style(speaker, seed)
    num_test = max(1, round(style.num_snippets / 5))
    count = num_test if split == "test" else style.num_snippets - num_test
    rng = _rng(seed, speaker, 1 if split == "train" else 2)
    chance = _uniform(rng)
    return [_snippet(style, _lexicon(seed), chance).encode() for _ in range(count)]


@functools.lru_cache(maxsize=1024)
def speaker_style(speaker: int, seed: int = 0) -> SpeakerStyle:
    """Returns the style of a speaker, determined by the arguments."""
    rng = _rng(seed, speaker, 0)
    words = {
        name: _cumulative(_zipf(len(words)) * rng.gamma(0.6, size=len(words)))
        for name, words in _lexicon(seed).items()
    }
    chosen = rng.choice(len(_RESPELLINGS), rng.integers(0, 4), replace=False)
    return SpeakerStyle(
        words=words,
        sentences=_cumulative(rng.gamma(0.8, size=len(_SENTENCES))),
        subjects=_cumulative(rng.gamma(1.0, size=len(_SUBJECTS))),
        punctuation=_cumulative(
            rng.gamma(0.4, size=len(_PUNCTUATION)) * (6, 2, 1, 1, 1, 1)
        ),
        verb_ending=_VERB_ENDINGS[rng.integers(len(_VERB_ENDINGS))],
        respellings=tuple(_RESPELLINGS[index] for index in sorted(chosen)),
        sentences_per_snippet=rng.uniform(1.2, 6.0),
        words_per_line=int(rng.choice((0, 0, 6, 7, 8))),
        num_snippets=int(min(80, 4 * (1 + rng.pareto(0.8)))),
    )


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(key))


def _zipf(count: int) -> np.ndarray:
    return 1.0 / np.arange(1, count + 1)


def _cumulative(weights: np.ndarray) -> np.ndarray:
    # The small constant keeps every word possible for every speaker.
    total = np.cumsum(weights + 1e-4 * np.max(weights))
    return total / total[-1]


def _uniform(rng: np.random.Generator) -> Iterator[float]:
    """Yields uniform numbers; drawn in blocks, because single draws are slow."""
    while True:
        yield from rng.random(4096).tolist()


@functools.lru_cache(maxsize=16)
def _lexicon(seed: int) -> Mapping[str, tuple[str, ...]]:
    """Returns the distinct words of each class, common to all speakers."""
    rng = np.random.default_rng(np.random.SeedSequence((seed, 1_000_000_007)))
    taken: set[str] = set()
    lexicon = {}
    for name, (count, least, most, ending) in _WORD_CLASSES.items():
        words: list[str] = []
        while len(words) < count:
            word = "".join(
                str(rng.choice(_ONSETS) + rng.choice(_NUCLEI))
                for _ in range(rng.integers(least, most + 1))
            )
            word += ending or str(rng.choice(_CODAS))
            if word not in taken:
                taken.add(word)
                words.append(word)
        lexicon[name] = tuple(words)
    return lexicon


def _pick(cumulative: np.ndarray, chance: Iterator[float]) -> int:
    return int(np.searchsorted(cumulative, next(chance), side="right"))


def _snippet(
    style: SpeakerStyle,
    lexicon: Mapping[str, tuple[str, ...]],
    chance: Iterator[float],
) -> str:
    """Returns sentences in verse or prose, in the speaker's spelling."""
    sentences = [_sentence(style, lexicon, chance)]
    go_on = 1.0 - 1.0 / style.sentences_per_snippet
    while len(sentences) < 12 and next(chance) < go_on:
        sentences.append(_sentence(style, lexicon, chance))
    text = " ".join(sentences)
    for sound, respelt in style.respellings:
        text = text.replace(sound, respelt)
    if style.words_per_line:
        words = text.split(" ")
        starts = range(0, len(words), style.words_per_line)
        lines = [" ".join(words[i : i + style.words_per_line]) for i in starts]
        text = "\n".join(line[0].upper() + line[1:] for line in lines)
    return text


def _sentence(
    style: SpeakerStyle,
    lexicon: Mapping[str, tuple[str, ...]],
    chance: Iterator[float],
) -> str:
    text = ""
    symbols = _SENTENCES[_pick(style.sentences, chance)].split()
    for symbol in symbols:
        if symbol == "S":
            kind = _SUBJECTS[_pick(style.subjects, chance)]
            words = [_word(name, style, lexicon, chance) for name in kind.split()]
            text += " " + " ".join(words)
        elif symbol == "v":
            text += " " + _word("verb", style, lexicon, chance) + style.verb_ending
        elif symbol in lexicon:
            text += " " + _word(symbol, style, lexicon, chance)
        else:
            text += symbol if symbol in ",?" else " " + symbol
    if symbols[-1] != "?":
        text += _PUNCTUATION[_pick(style.punctuation, chance)]
    text = text.lstrip()
    return text[0].upper() + text[1:]


def _word(
    name: str,
    style: SpeakerStyle,
    lexicon: Mapping[str, tuple[str, ...]],
    chance: Iterator[float],
) -> str:
    word = lexicon[name][_pick(style.words[name], chance)]
    return word.capitalize() if name == "name" else word

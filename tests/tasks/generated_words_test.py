"""The stand-in for Stack Overflow: users whose next words can be learned."""

import collections
import itertools

import numpy as np

from tasks import generated_words

_USERS = range(generated_words.DEFAULT_NUM_USERS)


def _words(user, split="train"):
    return b" ".join(generated_words.sentences(user, split)).split(b" ")


def _following(users):
    """Returns the next word that is most frequent after each word."""
    counters = collections.defaultdict(collections.Counter)
    for user in users:
        words = _words(user)
        for word, following in itertools.pairwise(words):
            counters[word][following] += 1
    return {word: counter.most_common(1)[0][0] for word, counter in counters.items()}


def _accuracy(predicted, words):
    pairs = itertools.pairwise(words)
    return np.mean([predicted.get(word) == following for word, following in pairs])


def test_sentences_are_a_function_of_seed_user_and_split_alone():
    first = generated_words.sentences(5, "train", seed=1)
    generated_words.sentences(6, "train", seed=1)
    generated_words.user_style.cache_clear()
    assert generated_words.sentences(5, "train", seed=1) == first
    assert generated_words.sentences(5, "test", seed=1) != first
    assert generated_words.sentences(6, "train", seed=1) != first
    assert generated_words.sentences(5, "train", seed=2) != first


def test_no_word_is_there_twice_and_no_other_is_written():
    vocabulary = generated_words.vocabulary()
    assert len(vocabulary) == len(set(vocabulary)) == generated_words.NUM_WORDS + 3
    known = {word.encode() for word in vocabulary}
    assert all(set(_words(user)) <= known for user in range(30))


def test_words_of_the_vocabulary_come_the_more_often_the_earlier_they_stand():
    counts = collections.Counter(word for user in _USERS for word in _words(user))
    ranked = [counts[word.encode()] for word in generated_words.vocabulary()]
    parts = [sum(ranked[start : start + 100]) for start in (0, 100, 1000, 10_000)]
    assert parts == sorted(parts, reverse=True)
    # Zipf's law: a tenth of the rank, ten times as often, more or less.
    assert 4 < parts[1] / parts[2] < 25
    out_of_vocabulary = sum(ranked[10_000:]) / sum(ranked)
    assert 0.003 < out_of_vocabulary < 0.05


def test_numbers_of_sentences_are_heavy_tailed():
    counts = np.array(
        [generated_words.user_style(user).num_sentences for user in _USERS]
    )
    assert counts.min() >= 40 and counts.max() <= 400
    assert np.mean(counts) > 1.2 * np.median(counts)
    for user in range(3):
        train = generated_words.sentences(user, "train")
        test = generated_words.sentences(user, "test")
        assert len(train) + len(test) == counts[user]
        assert round(counts[user] / 5) == len(test)


def test_the_next_word_can_be_learned():
    common = _following(range(100))
    heldout = [_words(user, "test") for user in range(100, 140)]
    found = np.mean([_accuracy(common, words) for words in heldout])
    words = [*itertools.chain(*heldout)]
    always_the_same = collections.Counter(words).most_common(1)[0][1] / len(words)
    assert always_the_same < 0.12 and 0.18 < found < 0.5


def test_users_have_words_of_their_own():
    small = {word.encode() for word in generated_words.vocabulary()[:60]}

    def known(user, other):
        """Returns the share of a user's larger words that another has used."""
        words = [word for word in _words(user, "test") if word not in small]
        return np.mean(np.isin(words, list(set(_words(other)))))

    users = [u for u in _USERS if generated_words.user_style(u).num_sentences > 80]
    own = np.mean([known(user, user) for user in users])
    others = np.mean([known(one, other) for one, other in itertools.pairwise(users)])
    assert own > 1.5 * others


def test_ids_are_distinct_and_in_order():
    ids = generated_words.client_ids()
    assert len(ids) == len(set(ids)) == 140
    assert list(ids) == sorted(ids)

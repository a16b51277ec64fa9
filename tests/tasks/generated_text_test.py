"""The stand-in for Shakespeare: speakers whose next characters can be learned."""

import collections

import numpy as np
import pytest

from tasks import generated_text, shakespeare

_SPEAKERS = range(generated_text.DEFAULT_NUM_SPEAKERS)


def _text(speakers, split="train"):
    return b"\n\n".join(
        snippet
        for speaker in speakers
        for snippet in generated_text.snippets(speaker, split)
    )


def _contexts(text, length=3):
    """Returns what follows each context, as counters."""
    following = collections.defaultdict(collections.Counter)
    for i in range(length, len(text)):
        following[text[i - length : i]][text[i]] += 1
    return following


def _accuracy(following, text, length=3):
    hits = 0
    for i in range(length, len(text)):
        counter = following.get(text[i - length : i])
        hits += bool(counter) and counter.most_common(1)[0][0] == text[i]
    return hits / (len(text) - length)


def test_snippets_are_a_function_of_seed_speaker_and_split_alone():
    first = generated_text.snippets(5, "train", seed=1)
    generated_text.snippets(6, "train", seed=1)
    generated_text.speaker_style.cache_clear()
    generated_text._lexicon.cache_clear()
    assert generated_text.snippets(5, "train", seed=1) == first
    assert generated_text.snippets(5, "test", seed=1) != first
    assert generated_text.snippets(6, "train", seed=1) != first
    assert generated_text.snippets(5, "train", seed=2) != first


def test_snippets_have_only_characters_of_the_vocabulary():
    assert not set(_text(_SPEAKERS)) - set(shakespeare.CHARACTERS.encode())


def test_numbers_of_snippets_are_heavy_tailed():
    counts = np.array(
        [generated_text.speaker_style(speaker).num_snippets for speaker in _SPEAKERS]
    )
    assert counts.min() == 4 and counts.max() == 80
    assert np.mean(counts) > 1.5 * np.median(counts)
    for speaker in range(5):
        train = generated_text.snippets(speaker, "train")
        test = generated_text.snippets(speaker, "test")
        assert len(train) + len(test) == counts[speaker]
        assert train and test and all(train) and all(test)


def test_the_next_character_can_be_learned_and_speakers_differ():
    common = _contexts(_text(range(100)))
    heldout = [
        speaker
        for speaker in range(147, 200)
        if generated_text.speaker_style(speaker).num_snippets > 30
    ]
    assert len(heldout) > 5
    shared, own = [], []
    for speaker in heldout:
        test = _text([speaker], "test")
        shared.append(_accuracy(common, test))
        own.append(_accuracy(_contexts(_text([speaker])), test))
    assert 0.35 < np.mean(shared) < 0.8
    assert np.mean(own) > np.mean(shared) + 0.02


@pytest.mark.parametrize("seed", [0, 1])
def test_no_word_is_there_twice(seed):
    words = [w for words in generated_text._lexicon(seed).values() for w in words]
    assert len(words) == len(set(words)) > 400


def test_ids_are_distinct_and_in_order():
    ids = generated_text.client_ids()
    assert len(ids) == len(set(ids)) == 200
    assert list(ids) == sorted(ids)

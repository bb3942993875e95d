"""Real weights, real sentences: meaning, order, shape, and that a neighbour in the batch changes nothing."""

import math

import bert
import model
import numpy as np
import pytest
from omni import errors
from omni.testing import TestClient

EATING = "A man is eating food."
BREAD = "A man is eating a piece of bread."
MONKEY = "A monkey is playing drums."
STOCKS = "The stock market fell sharply today."


@pytest.fixture(scope="module")
def embed():
    with TestClient(".") as client:
        yield client.embed


def test_near_sentences_score_above_far_ones(embed):
    eating, bread, monkey, stocks = np.array(embed([EATING, BREAD, MONKEY, STOCKS]))
    assert eating @ bread == pytest.approx(0.755, abs=0.001)
    assert eating @ monkey == pytest.approx(0.048, abs=0.001)
    assert abs(eating @ stocks) < 0.05


def test_one_text_has_one_vector_of_length_one(embed):
    (vector,) = embed([EATING])
    assert len(vector) == 384
    assert math.fsum(x * x for x in vector) == pytest.approx(1, abs=1e-5)


def test_the_batch_changes_nothing(embed):
    texts = [EATING, "word " * 300, BREAD, "two words", "naïve 東京 🙂", "x " * 90] * 5
    alone = np.array([embed([text])[0] for text in texts])
    assert np.abs(np.array(embed(texts)) - alone).max() < 1e-5


def test_padding_changes_nothing():
    ids, lengths = np.array([[101, 2158, 102, 0, 0], [101, 2158, 2003, 5983, 102]]), np.array([3, 5])
    before = model.bert.encode(ids, lengths)
    ids[0, 3:] = 777
    assert np.array_equal(model.bert.encode(ids, lengths), before)


def test_every_text_is_in_exactly_one_batch_and_batches_are_bounded():
    lengths = [3, 256, 256, 256, 256, 256, 2, 90, 90, 40] * 7
    found = list(model.batches(lengths))
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[i] for i in batch) <= model.TOKENS_PER_BATCH for batch in found)


def test_gelu_is_the_exact_one():
    x = np.linspace(-8, 8, 3_001, dtype=np.float32).reshape(3_001, 1)
    wanted = [0.5 * float(v) * math.erfc(-float(v) / math.sqrt(2)) for v in x[:, 0]]
    bert.gelu(x)
    assert np.abs(x[:, 0] - wanted).max() < 1e-6


def test_token_ids_and_other_dimensions_are_refused(embed):
    with pytest.raises(errors.BadRequest, match="token ids"):
        embed(tokens=[[1, 2]])
    with pytest.raises(errors.BadRequest, match="384"):
        embed(["a"], dimensions=128)
    assert len(embed(["a"], dimensions=384)[0]) == 384

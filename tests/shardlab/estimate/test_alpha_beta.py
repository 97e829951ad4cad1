"""The fit recovers the costs from measurements, and raises if there are too few of them."""

import math

import numpy as np
import pytest

from shardlab.estimate import AlphaBeta, ring_messages, ring_sent_bytes

ACTUAL = AlphaBeta(alpha_s=50e-6, bytes_per_s=2e9)
SIZES = np.array([2**k for k in range(8, 25, 2)], dtype=float)


def ring(world_size):
    """(messages, sent bytes) of ring all-reduces of all SIZES."""
    sent = [ring_sent_bytes(size, world_size) for size in SIZES]
    return np.full(len(SIZES), ring_messages(world_size)), np.array(sent)


def test_exact_measurements_are_fitted_exactly():
    messages, sent = ring(4)
    fitted = AlphaBeta.fit(messages, sent, ACTUAL.seconds(messages, sent))
    assert fitted.alpha_s == pytest.approx(ACTUAL.alpha_s)
    assert fitted.bytes_per_s == pytest.approx(ACTUAL.bytes_per_s)


def test_20_percent_noise_moves_the_fit_by_less_than_20_percent():
    messages, sent = ring(2)
    noise = np.random.default_rng(0).uniform(0.8, 1.2, len(SIZES))
    fitted = AlphaBeta.fit(messages, sent, ACTUAL.seconds(messages, sent) * noise)
    assert fitted.alpha_s == pytest.approx(ACTUAL.alpha_s, rel=0.2)
    assert fitted.bytes_per_s == pytest.approx(ACTUAL.bytes_per_s, rel=0.2)


def test_one_large_outlier_does_not_change_the_latency():
    messages, sent = ring(2)
    seconds = ACTUAL.seconds(messages, sent)
    seconds[-1] *= 1.5  # if the fit minimized absolute errors, this point would dominate
    assert AlphaBeta.fit(messages, sent, seconds).alpha_s == pytest.approx(ACTUAL.alpha_s, rel=0.2)


def test_costs_are_never_negative():
    messages, sent = np.full(3, 2.0), np.array([1e3, 1e6, 1e9])
    faster_when_larger = AlphaBeta.fit(messages, sent, [3.0, 2.0, 1.0])
    assert faster_when_larger.bytes_per_s == math.inf
    assert faster_when_larger.alpha_s > 0
    only_bytes = AlphaBeta.fit(messages, sent, [0.5e-6, 0.9e-3, 1.0])
    assert only_bytes.alpha_s >= 0


def test_several_world_sizes_in_one_fit():
    both = [np.concatenate(pair) for pair in zip(ring(2), ring(8), strict=True)]
    fitted = AlphaBeta.fit(*both, ACTUAL.seconds(*both))
    assert fitted.alpha_s == pytest.approx(ACTUAL.alpha_s)


@pytest.mark.parametrize(
    ("measurements", "message"),
    [
        (([2, 2], [1e6, 1e6], [1e-3, 1e-3]), "two sizes"),
        (([2], [1e6], [1e-3]), "two sizes"),
        (([2, 2], [1e3, 1e6], [1e-3, 0.0]), "above 0"),
        (([2, 2], [1e3, 1e6], [1e-3]), "one entry"),
    ],
)
def test_insufficient_measurements_raise(measurements, message):
    with pytest.raises(ValueError, match=message):
        AlphaBeta.fit(*measurements)

"""Lengths: what a distribution of token counts promises, whichever way it was stated."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from servegen.workload import NODE_EDGES, Lengths, held_tokens

NORMAL = NormalDist()
P = np.linspace(0.001, 0.999, 333)


def sigma_of(mean: float, p: float, q: float) -> float:
    """The smaller root of ln(q / mean) = z sigma - sigma^2 / 2."""
    z = NORMAL.inv_cdf(p)
    return z - math.sqrt(z * z - 2 * math.log(q / mean))


tokens = st.floats(1, 1e5)


@st.composite
def lognormals(draw: st.DrawFn) -> Lengths:
    mean = draw(st.floats(20, 1e5))
    if draw(st.booleans()):
        return Lengths.lognormal(mean, p=0.95, q=mean * draw(st.floats(1.001, 2.5)))
    return Lengths.lognormal(mean, p=0.5, q=mean * draw(st.floats(0.7, 0.999)))


@st.composite
def interpolations(draw: st.DrawFn) -> Lengths:
    p50 = draw(st.floats(1, 1e4))
    p95 = p50 * draw(st.floats(1, 5))
    p99 = p95 * draw(st.floats(1, 2))
    curve = Lengths.interpolated({0.5: p50, 0.95: p95, 0.99: p99})
    if draw(st.booleans()):
        return Lengths.interpolated({0.5: p50, 0.95: p95, 0.99: p99}, mean=curve.mean * draw(st.floats(1, 2)))
    return curve


@st.composite
def histograms(draw: st.DrawFn) -> Lengths:
    widths = draw(st.lists(st.floats(0.5, 1e3), min_size=1, max_size=6))
    weights = draw(st.lists(st.one_of(st.just(0.0), st.floats(0.01, 9)), min_size=len(widths), max_size=len(widths)))
    assume(sum(weights) > 0)
    return Lengths.histogram(list(zip(np.cumsum(widths) + 1, weights, strict=True)))


plain = st.one_of(
    tokens.map(Lengths.fixed),
    lognormals(),
    interpolations(),
    histograms(),
    st.lists(st.integers(1, 9000), min_size=1, max_size=40).map(Lengths.empirical),
)


@st.composite
def changed(draw: st.DrawFn) -> Lengths:
    """Any lengths, with up to three scalings and subtractions in any order."""
    lengths = draw(plain)
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            lengths = lengths.scaled(draw(st.floats(0.1, 3)))
        else:
            lengths = lengths.minus(draw(st.floats(0, 500)))
    return lengths


# ---- quantiles and their inverse


@given(changed())
def test_quantiles_ascend_from_at_least_one_token(lengths: Lengths) -> None:
    q = lengths.quantile(np.concatenate([[0.0], P, [1.0]]))
    assert q[0] >= 1
    assert (np.diff(q) >= -1e-9 * q[1:]).all()


@given(changed())
def test_cdf_and_quantile_are_inverse(lengths: Lengths) -> None:
    q = lengths.quantile(P)
    # Exactly on a step the float may fall on either side, so the step is approached from above.
    assert (lengths.cdf(q * (1 + 1e-9)) >= P - 1e-7).all()
    assert (lengths.cdf(q * (1 - 1e-6) - 1e-6) <= P + 1e-4).all()
    inside = lengths.cdf(q)
    assert (lengths.quantile(np.minimum(inside, 1 - 1e-12)) <= q * (1 + 1e-6) + 1e-6).all()


def test_steps_survive_rounding() -> None:
    for n in range(1, 120):
        values = np.arange(n + 1.0, 2 * n + 1)
        lengths = Lengths.empirical(values)
        assert (lengths.quantile(lengths.cdf(values)) == values).all()
        changed = lengths.minus(n / 7).scaled(1 + n / 13)
        on_the_step = changed.quantile((np.arange(n) + 0.5) / n)
        assert changed.cdf(on_the_step) == pytest.approx((np.arange(n) + 1) / n)


@given(changed())
def test_cdf_is_zero_below_one_token_and_ascends(lengths: Lengths) -> None:
    x = np.concatenate([[-5.0, 0.0, 0.999], np.geomspace(1, 1e7, 200)])
    c = lengths.cdf(x)
    assert (c[:3] == 0).all()
    assert (np.diff(c) >= 0).all()
    assert ((c >= 0) & (c <= 1)).all()
    assert c[-1] > 0.99


def test_shapes_of_arrays_are_kept() -> None:
    for lengths in (
        Lengths.fixed(3),
        Lengths.lognormal(100, p=0.95, q=200),
        Lengths.histogram([[10, 1]]),
        Lengths.stated(p50=5, p95=9, p99=30),
    ):
        assert lengths.quantile(0.5).shape == ()
        assert lengths.quantile(np.full((2, 3), 0.5)).shape == (2, 3)
        assert lengths.cdf(7.0).shape == ()
        assert lengths.cdf(np.full((2, 3), 7.0)).shape == (2, 3)


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_a_probability_outside_zero_to_one_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Lengths.fixed(5).quantile(p)


# ---- moments


@given(changed())
@settings(max_examples=60)
def test_moments_are_the_integrals_of_the_quantile_function(lengths: Lengths) -> None:
    z = np.linspace(-8, 8, 8001)
    q = lengths.quantile([NORMAL.cdf(s) for s in z])
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    for k in (1, 2, 3):
        assert lengths.moment(k) == pytest.approx(float((q**k * density).sum() * (z[1] - z[0])), rel=3e-3)


@given(lognormals(), st.integers(1, 3))
def test_lognormal_moments_are_the_textbook_ones(lengths: Lengths, k: int) -> None:
    assume(float(lengths.cdf(1.0)) < 1e-12)
    median, p84 = lengths.quantile([0.5, NORMAL.cdf(1.0)])
    sigma = math.log(p84 / median)
    assert lengths.moment(k) == pytest.approx(median**k * math.exp((k * sigma) ** 2 / 2), rel=1e-7)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=50))
def test_empirical_moments_and_quantiles_are_those_of_the_samples(samples: list[int]) -> None:
    lengths = Lengths.empirical(samples)
    for k in (1, 2, 3):
        assert lengths.moment(k) == pytest.approx(np.mean(np.array(samples, dtype=float) ** k), rel=1e-12)
    wanted = np.quantile(samples, [0.123, 0.5, 0.77, 0.99], method="inverted_cdf")
    assert lengths.quantile([0.123, 0.5, 0.77, 0.99]).tolist() == wanted.tolist()
    assert lengths.longest == max(samples)
    assert lengths.variance == pytest.approx(np.var(samples), rel=1e-6, abs=1e-6)


def test_histogram_is_uniform_inside_a_bucket() -> None:
    lengths = Lengths.histogram([[11, 3], [21, 0], [31, 1]])
    assert lengths.quantile([0, 0.375, 0.75, 0.875, 1]).tolist() == [1, 6, 11, 26, 31]
    assert lengths.cdf([6, 11, 16, 21, 26, 31, 99]).tolist() == [0.375, 0.75, 0.75, 0.75, 0.875, 1, 1]
    assert lengths.mean == pytest.approx(0.75 * 6 + 0.25 * 26)
    second = 0.75 * (11**3 - 1) / 30 + 0.25 * (31**3 - 21**3) / 30
    assert lengths.moment(2) == pytest.approx(second)
    assert lengths.longest == 31


def test_other_moments_are_refused() -> None:
    with pytest.raises(ValueError, match="moment 4"):
        Lengths.fixed(5).moment(4)


# ---- stated figures


@given(mean=st.floats(1.5, 1e6), ratio=st.floats(1.0, 3.867))
def test_mean_and_p95_are_reproduced(mean: float, ratio: float) -> None:
    try:
        lengths = Lengths.lognormal(mean, p=0.95, q=mean * ratio)
    except ValueError as error:
        # The floor of one token leaves no room: for small means, or close to the limit.
        assert (mean < 12 or ratio > 3.8) and "at least 1 token" in str(error)
        return
    assert lengths.mean == pytest.approx(mean, rel=1e-6)
    assert float(lengths.quantile(0.95)) == pytest.approx(mean * ratio, rel=1e-9)


@given(mean=st.floats(60, 1e6), ratio=st.floats(1, 14))
def test_mean_and_p99_are_reproduced(mean: float, ratio: float) -> None:
    lengths = Lengths.stated(mean=mean, p99=mean * ratio)
    assert lengths.mean == pytest.approx(mean, rel=1e-9)
    assert float(lengths.quantile(0.99)) == pytest.approx(mean * ratio, rel=1e-9)


@given(mean=st.floats(1.5, 1e6), share=st.floats(0.05, 1))
def test_mean_and_p50_are_reproduced(mean: float, share: float) -> None:
    p50 = max(1.0, mean * share)
    lengths = Lengths.stated(mean=mean, p50=p50)
    assert lengths.mean == pytest.approx(mean, rel=1e-9)
    assert float(lengths.quantile(0.5)) == pytest.approx(p50, rel=1e-9)


@given(mean=st.floats(200, 1e5), ratio=st.floats(1.01, 3.8))
def test_of_two_lognormals_the_smaller_sigma_is_taken(mean: float, ratio: float) -> None:
    low, high = Lengths.lognormal(mean, p=0.95, q=mean * ratio).quantile([0.9, 0.99])
    sigma = math.log(high / low) / (NORMAL.inv_cdf(0.99) - NORMAL.inv_cdf(0.9))
    assert sigma == pytest.approx(sigma_of(mean, 0.95, mean * ratio), rel=1e-4)
    assert sigma < NORMAL.inv_cdf(0.95)


def test_the_floor_of_one_token_is_part_of_the_solution() -> None:
    lengths = Lengths.lognormal(4, p=0.95, q=12)
    assert lengths.mean == pytest.approx(4, rel=1e-9)
    assert float(lengths.quantile(0.01)) == 1
    assert float(lengths.cdf(1.0)) > 0.05


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"mean": 100, "p95": 388}, r"3\.88 times mean.*at most 3\.87 times"),
        ({"mean": 100, "p99": 1500}, r"15\.00 times mean.*at most 14\.97 times"),
        ({"mean": 100, "p50": 101}, r"p50 = 101 is above mean = 100"),
        ({"mean": 100, "p95": 99}, r"p95 = 99 is below mean = 100"),
        ({"mean": 2, "p95": 7.7}, r"at least 1 token"),
        ({"p50": 100}, r"state mean, or at least two"),
        ({"p95": 100}, r"state mean, or at least two"),
        ({}, r"state mean, or at least two"),
        ({"mean": 0.5}, r"at least 1 token"),
        ({"mean": math.nan}, r"at least 1 token"),
        ({"mean": 10, "p50": 0}, r"p50 must be at least 1 token"),
        ({"p50": 100, "p95": 90}, r"p95 = 90 is below p50 = 100"),
        ({"p50": 100, "p95": 900, "p99": 800}, r"p99 = 800 is below p95 = 900"),
        ({"p95": 10, "p99": 1000}, r"too far above"),
        ({"mean": 50, "p50": 100, "p95": 900}, r"mean = 50 is too small.*at least 90\.5"),
    ],
)
def test_impossible_figures_are_explained(figures: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lengths.stated(**figures)


def test_figures_just_inside_the_limits_have_a_solution() -> None:
    for p, limit in ((0.95, 3.868), (0.99, 14.96)):
        assert math.exp(NORMAL.inv_cdf(p) ** 2 / 2) == pytest.approx(limit, rel=1e-3)
        lengths = Lengths.lognormal(1000, p=p, q=1000 * math.exp(NORMAL.inv_cdf(p) ** 2 / 2) * (1 - 1e-4))
        assert lengths.mean == pytest.approx(1000, rel=1e-6)


def test_a_mean_alone_is_fixed() -> None:
    assert Lengths.stated(mean=512) == Lengths.fixed(512)
    assert Lengths.stated(mean=512, p95=512) == Lengths.fixed(512)
    assert Lengths.fixed(512).longest == 512
    assert Lengths.fixed(512.5).longest == 513
    assert Lengths.fixed(512).variance == 0


def test_two_percentiles_are_the_lognormal_through_both() -> None:
    lengths = Lengths.stated(p50=1000, p95=4000)
    sigma = math.log(4) / NORMAL.inv_cdf(0.95)
    expected = [1000 * math.exp(sigma * NORMAL.inv_cdf(p)) for p in (0.01, 0.3, 0.5, 0.95, 0.999)]
    assert lengths.quantile([0.01, 0.3, 0.5, 0.95, 0.999]).tolist() == pytest.approx(expected, rel=1e-9)
    assert lengths.mean == pytest.approx(1000 * math.exp(sigma**2 / 2), rel=1e-9)
    assert lengths.longest == math.ceil(expected[-1])


@given(st.lists(st.floats(0, 3), min_size=2, max_size=6), st.floats(1, 1e4), st.randoms(use_true_random=False))
def test_interpolation_is_monotone_through_any_ascending_figures(steps: list[float], first: float, random) -> None:
    probabilities = sorted({round(random.uniform(0.05, 0.99), 2) for _ in steps})
    assume(len(probabilities) >= 2)
    z = [NORMAL.inv_cdf(p) for p in probabilities]
    logs = [math.log(first)]
    for i in range(1, len(z)):
        logs.append(logs[-1] + steps[i] * (z[i] - z[i - 1]))
    figures = {p: math.exp(y) for p, y in zip(probabilities, logs, strict=True)}
    lengths = Lengths.interpolated(figures)
    assert lengths.quantile(probabilities).tolist() == pytest.approx(list(figures.values()), rel=1e-9)
    fine = lengths.quantile(np.linspace(1e-6, 1 - 1e-6, 4001))
    assert (np.diff(fine) >= -1e-12 * fine[1:]).all()


def test_interpolation_is_pchip_between_the_figures() -> None:
    # scipy 1.17.1's PchipInterpolator has this derivative at the middle knot (its end slopes follow another rule).
    lengths = Lengths.interpolated({0.5: 275, 0.95: 1899, 0.99: 12214})
    z, h = NORMAL.inv_cdf(0.95), 1e-5
    low, high = lengths.quantile([NORMAL.cdf(z - h), NORMAL.cdf(z + h)])
    assert math.log(high / low) / (2 * h) == pytest.approx(1.738489240739667, rel=1e-4)


def test_a_steep_last_segment_does_not_run_on() -> None:
    lengths = Lengths.interpolated({0.5: 275, 0.95: 1899, 0.99: 12214})
    chord = math.log(12214 / 275) / NORMAL.inv_cdf(0.99)
    beyond = 12214 * math.exp(chord * (NORMAL.inv_cdf(0.9999) - NORMAL.inv_cdf(0.99)))
    assert float(lengths.quantile(0.9999)) == pytest.approx(beyond, rel=1e-9)
    # A last segment flatter than the whole goes on as it is.
    lengths = Lengths.interpolated({0.5: 1000, 0.95: 4000, 0.99: 4400})
    last = math.log(1.1) / (NORMAL.inv_cdf(0.99) - NORMAL.inv_cdf(0.95))
    beyond = 4400 * math.exp(last * (NORMAL.inv_cdf(0.9999) - NORMAL.inv_cdf(0.99)))
    assert float(lengths.quantile(0.9999)) == pytest.approx(beyond, rel=1e-9)


@given(st.floats(1, 1e3), st.floats(1, 6), st.floats(1, 3), st.floats(1, 3))
def test_three_figures_are_scaled_to_the_mean(p50: float, up: float, top: float, more: float) -> None:
    figures = {0.5: p50, 0.95: p50 * up, 0.99: p50 * up * top}
    mean = Lengths.interpolated(figures).mean * more
    lengths = Lengths.stated(mean=mean, p50=p50, p95=p50 * up, p99=p50 * up * top)
    assert lengths.mean == pytest.approx(mean, rel=1e-9)
    factors = lengths.quantile([0.5, 0.95, 0.99]) / list(figures.values())
    assert factors == pytest.approx([factors[0]] * 3, rel=1e-6)


# ---- histograms, samples


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ([], "at least one"),
        ([[10, 1], [10, 1]], "bucket 2 ends at 10"),
        ([[0.5, 1]], "bucket 1 ends at 0.5"),
        ([[10, -1]], "bucket 1 has weight -1"),
        ([[10, 0], [20, 0]], "all 0"),
        ([[10, 1, 2]], "bucket 1 of the histogram is not"),
        ([[math.inf, 1]], "bucket 1 ends at inf"),
    ],
)
def test_broken_histograms_are_explained(buckets: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lengths.histogram(buckets)


def test_a_first_bucket_of_one_token_is_a_point() -> None:
    lengths = Lengths.histogram([[1, 1], [3, 1]])
    assert lengths.cdf([0.9, 1, 2, 3]).tolist() == [0, 0.5, 0.75, 1]
    assert lengths.mean == pytest.approx(1.5)


@pytest.mark.parametrize("samples", [[], [0, 5], [math.nan], [math.inf]])
def test_broken_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="sample"):
        Lengths.empirical(samples)


# ---- nodes


@given(changed())
def test_nodes_carry_the_mean_and_upper_nodes_lie_above(lengths: Lengths) -> None:
    means, weights = lengths.nodes(upper=False)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert (weights == np.diff(NODE_EDGES)).all()
    assert float(means @ weights) == pytest.approx(lengths.mean, rel=1e-6)
    assert (np.diff(means) >= -1e-9 * means[1:]).all()
    assert means[0] >= 1
    uppers, again = lengths.nodes(upper=True)
    assert (again == weights).all()
    assert (uppers >= means).all()
    assert uppers[:2] == pytest.approx(means[:2])
    assert uppers[2:-1] == pytest.approx(np.maximum(lengths.quantile(NODE_EDGES[3:-1]), means[2:-1]))
    assert uppers[-1] >= lengths.longest


def test_percentiles_of_upper_nodes_err_to_the_safe_side() -> None:
    lengths = Lengths.lognormal(1000, p=0.95, q=3000)
    values, weights = lengths.nodes(upper=True)
    for p in (0.6, 0.75, 0.9, 0.95, 0.97, 0.99, 0.999):
        node = values[np.searchsorted(np.cumsum(weights), p - 1e-12)]
        assert node >= float(lengths.quantile(p)) * (1 - 1e-12)


def test_upper_nodes_of_a_very_heavy_tail_still_lie_above() -> None:
    lengths = Lengths.interpolated({0.5: 10, 0.95: 10 * math.exp(5 * NORMAL.inv_cdf(0.95))})
    assert lengths.nodes(upper=True)[0][-1] >= lengths.nodes(upper=False)[0][-1] > lengths.longest


# ---- changes


@given(plain, st.floats(0.05, 4), st.floats(0, 800), st.floats(0.05, 4))
def test_scaled_and_minus_act_on_every_request(lengths: Lengths, a: float, b: float, c: float) -> None:
    q = lengths.quantile(P)
    once = lengths.scaled(a)
    assert once.quantile(P) == pytest.approx(np.maximum(1, a * q), rel=1e-9)
    twice = once.minus(b)
    assert twice.quantile(P) == pytest.approx(np.maximum(1, np.maximum(1, a * q) - b), rel=1e-9, abs=1e-7)
    thrice = twice.scaled(c)
    expected = np.maximum(1, c * np.maximum(1, np.maximum(1, a * q) - b))
    assert thrice.quantile(P) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_scaled_and_minus_by_hand() -> None:
    lengths = Lengths.empirical([1, 100, 1000])
    assert lengths.minus(100).mean == pytest.approx((1 + 1 + 900) / 3)
    assert lengths.minus(100).longest == 900
    assert lengths.scaled(0.25).mean == pytest.approx((1 + 25 + 250) / 3)
    assert lengths.scaled(0.25).moment(3) == pytest.approx((1 + 25**3 + 250**3) / 3)
    assert lengths.minus(2000).mean == 1
    assert lengths.minus(0) == lengths
    for factor in (0, -1, math.inf, math.nan):
        with pytest.raises(ValueError, match="positive"):
            lengths.scaled(factor)
    with pytest.raises(ValueError, match="0 or more"):
        lengths.minus(-1)


def test_scaling_does_not_ask_for_a_token_more() -> None:
    assert Lengths.fixed(30).scaled(0.1).scaled(10).longest == 30


# ---- samples drawn


@given(lognormals())
@settings(max_examples=10)
def test_sample_follows_the_distribution(lengths: Lengths) -> None:
    drawn = lengths.sample(np.random.default_rng(1), 20_000)
    assert drawn.dtype == np.int64 and drawn.shape == (20_000,)
    assert drawn.min() >= 1
    error = math.sqrt(lengths.variance / 20_000)
    assert abs(drawn.mean() - lengths.mean) < 5 * error + 0.05
    for p in (0.1, 0.5, 0.9):
        share = float((drawn <= lengths.quantile(p) + 0.5).mean())
        assert share >= p - 0.02
    assert (drawn == lengths.sample(np.random.default_rng(1), 20_000)).all()


# ---- held tokens


def test_held_tokens_of_fixed_lengths() -> None:
    mean, variance = held_tokens(Lengths.fixed(100), Lengths.fixed(12))
    assert mean == pytest.approx(106)
    assert variance == pytest.approx(12)


@given(isl=plain, osl=plain)
@settings(max_examples=25)
def test_held_tokens_agree_with_drawing_running_requests(isl: Lengths, osl: Lengths) -> None:
    rng = np.random.default_rng(7)
    n = 200_000
    prompts = isl.quantile(rng.random(n))
    # Stratified, because the cube of a heavy tail converges slowly.
    outputs = osl.quantile(rng.permutation((np.arange(n) + 0.5) / n))
    held = prompts + rng.random(n) * outputs
    mean = float(np.average(held, weights=outputs))
    variance = float(np.average((held - mean) ** 2, weights=outputs))
    wanted_mean, wanted_variance = held_tokens(isl, osl)
    assert wanted_mean == pytest.approx(mean, rel=0.02)
    assert wanted_variance == pytest.approx(variance, rel=0.12, abs=1e-3 * mean**2)


# ---- identity


def test_lengths_are_equal_by_value() -> None:
    assert Lengths.empirical([3, 1, 3]) == Lengths.empirical(np.array([1, 3, 3]))
    assert hash(Lengths.empirical([3, 1, 3])) == hash(Lengths.empirical([1.0, 3.0, 3.0]))
    assert Lengths.empirical([3, 1]) != Lengths.empirical([3, 2])
    assert Lengths.stated(mean=100, p95=200) == Lengths.stated(mean=100, p95=200)
    assert len({Lengths.fixed(3), Lengths.histogram([[3, 1]]), Lengths.fixed(3).scaled(2)}) == 3
    assert Lengths.fixed(3) != Lengths.histogram([[3, 1]])

"""Noise schedules and the steps that undo them, against what can be worked out on paper."""

import math

import numpy as np
import pytest

from darner import ArgumentError
from darner.models.diffusion import NoiseSchedule

SCHEDULES = ("linear", "scaled_linear", "squaredcos_cap_v2")
PREDICTIONS = ("epsilon", "sample", "v_prediction")


def test_linear_betas_go_from_end_to_end():
    schedule = NoiseSchedule(num_train_timesteps=5, beta_start=0.1, beta_end=0.5)
    np.testing.assert_allclose(schedule.betas, [0.1, 0.2, 0.3, 0.4, 0.5])
    wanted = [0.9, 0.9 * 0.8, 0.9 * 0.8 * 0.7, 0.9 * 0.8 * 0.7 * 0.6, 0.9 * 0.8 * 0.7 * 0.6 * 0.5]
    np.testing.assert_allclose(schedule.alphas_cumprod, wanted)


def test_scaled_betas_are_linear_in_their_roots():
    schedule = NoiseSchedule(
        num_train_timesteps=3, beta_start=0.04, beta_end=0.36, beta_schedule="scaled_linear"
    )
    np.testing.assert_allclose(schedule.betas, [0.04, 0.16, 0.36])


def test_the_cosine_schedule_is_a_cosine():
    """But for the last steps, whose betas are held below 0.999, the share of data is a squared cosine, 1 before the first."""
    schedule = NoiseSchedule(num_train_timesteps=200, beta_schedule="squaredcos_cap_v2")
    share = np.cos((np.arange(1, 201) / 200 + 0.008) / 1.008 * math.pi / 2) ** 2
    share /= math.cos(0.008 / 1.008 * math.pi / 2) ** 2
    np.testing.assert_allclose(schedule.alphas_cumprod[:-1], share[:-1], rtol=1e-12)
    assert schedule.betas[-1] == 0.999


@pytest.mark.parametrize(
    ("spacing", "count", "wanted"),
    [
        ("leading", 4, [75, 50, 25, 0]),
        ("leading", 3, [66, 33, 0]),
        ("trailing", 4, [99, 74, 49, 24]),
        ("linspace", 4, [99, 66, 33, 0]),
        ("linspace", 1, [99]),
        ("trailing", 1, [99]),
        ("leading", 1, [0]),
    ],
)
def test_timesteps(spacing, count, wanted):
    schedule = NoiseSchedule(num_train_timesteps=100, timestep_spacing=spacing)
    assert schedule.timesteps(count).tolist() == wanted
    assert schedule.timesteps(100).tolist() == list(range(99, -1, -1))


def test_stable_diffusion_begins_at_981():
    """Its scheduler has an offset of 1 and takes 50 steps."""
    found = {"_class_name": "PNDMScheduler", "beta_start": 0.00085, "beta_end": 0.012}
    found |= {"beta_schedule": "scaled_linear", "steps_offset": 1, "set_alpha_to_one": False}
    schedule = NoiseSchedule.from_hf(found)
    assert schedule.timesteps(50)[[0, 1, -1]].tolist() == [981, 961, 1]
    assert schedule.alphas_cumprod[-1] == pytest.approx(0.0046601, rel=1e-4)
    assert found.items() <= schedule.to_hf().items()


def test_noise_is_added_to_each_of_a_batch_by_its_own_time():
    schedule = NoiseSchedule(num_train_timesteps=2, beta_start=0.36, beta_end=0.75)
    data, noise = np.full((2, 3, 1), 10.0, np.float32), np.ones((2, 3, 1), np.float32)
    found = schedule.add_noise(data, noise, np.array([0, 1]))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], 10.0 * 0.8 + 0.6, rtol=1e-6)
    np.testing.assert_allclose(found[1], 10.0 * 0.4 + math.sqrt(0.84), rtol=1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_what_was_added_is_found_again(name, prediction):
    schedule = NoiseSchedule(beta_schedule=name, prediction_type=prediction)
    rng = np.random.default_rng(0)
    data, noise = rng.normal(size=(2, 4, 3))
    for timestep in (0, 10, 500, 900):
        x = schedule.add_noise(data, noise, timestep)
        output = schedule.target(data, noise, timestep)
        found = schedule.found(output, timestep, x)
        np.testing.assert_allclose(found, [data, noise], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("count", [1, 3, 20])
def test_one_datum_is_found_exactly_in_any_number_of_steps(prediction, count):
    """A model that knows the only datum leads every noise to it."""
    schedule = NoiseSchedule(prediction_type=prediction, timestep_spacing="trailing")
    wanted = np.array([2.0, -1.0])

    def denoise(x, timestep):
        kept = schedule.alphas_cumprod[timestep]
        noise = (x - math.sqrt(kept) * wanted) / math.sqrt(1.0 - kept)
        return schedule.target(np.broadcast_to(wanted, x.shape), noise, timestep)

    noise = np.random.default_rng(1).normal(size=(5, 2))
    for options in ({}, {"eta": 0.7}, {"method": "ddpm"}):
        found = schedule.sample(denoise, noise, count=count, **options)
        np.testing.assert_allclose(found, np.broadcast_to(wanted, (5, 2)), rtol=1e-9)


def normal_noise(schedule, deviation):
    """The mean of the noise, given x, where data are normally distributed around 0."""

    def denoise(x, timestep):
        kept = schedule.alphas_cumprod[timestep]
        return math.sqrt(1.0 - kept) * x / (kept * deviation**2 + 1.0 - kept)

    return denoise


def test_a_normal_distribution_comes_out_as_it_went_in():
    """DDIM's limit is x -> x * deviation / 1 for normal data, and a thousand steps are close to it."""
    schedule = NoiseSchedule(beta_schedule="squaredcos_cap_v2", timestep_spacing="trailing")
    noise = np.linspace(-2.0, 2.0, 9)
    found = schedule.sample(normal_noise(schedule, 0.25), noise, count=1000)
    np.testing.assert_allclose(found, 0.25 * noise, rtol=2e-2)


def test_the_variance_of_ddpm_is_that_of_its_recursion():
    """For normal data each step is linear in x and in fresh noise, so that the variance can be followed by hand."""
    schedule = NoiseSchedule()
    denoise = normal_noise(schedule, 0.5)
    steps = schedule.timesteps(1000).tolist()
    variance = 1.0
    for timestep, previous in zip(steps, [*steps[1:], -1], strict=True):
        one, zero = np.ones(1), np.zeros(1)
        slope = schedule.ddpm_step(denoise(one, timestep), timestep, previous, one, zero)[0]
        spread = schedule.ddpm_step(zero, timestep, previous, zero, one)[0]
        variance = slope**2 * variance + spread**2
    assert variance == pytest.approx(0.25, rel=0.03)
    noise = np.random.default_rng(0).normal(size=5000)
    found = schedule.sample(denoise, noise, count=1000, method="ddpm")
    assert found.var() == pytest.approx(variance, rel=0.06)  # three deviations of an estimate


@pytest.mark.parametrize(("timestep", "previous"), [(9, 8), (9, 3), (0, -1)])
def test_a_ddpm_step_draws_from_the_posterior(timestep, previous):
    """Bayes for normal distributions: the prior is what noise makes of the data at ``previous``, and x is seen through more noise."""
    schedule = NoiseSchedule(num_train_timesteps=10, beta_start=0.05, beta_end=0.3)
    now = schedule.alphas_cumprod[timestep]
    then = schedule.alphas_cumprod[previous] if previous >= 0 else 1.0
    data, x = np.array([0.7]), np.array([-0.4])
    output = (x - math.sqrt(now) * data) / math.sqrt(1.0 - now)
    found = [
        schedule.ddpm_step(output, timestep, previous, x, np.array([noise]))[0] for noise in (0, 1)
    ]
    if previous < 0:
        assert found == pytest.approx([0.7, 0.7])
        return
    factor = math.sqrt(now / then)
    precision = 1.0 / (1.0 - then) + factor**2 / (1.0 - now / then)
    mean = math.sqrt(then) * 0.7 / (1.0 - then) + factor * -0.4 / (1.0 - now / then)
    assert found == pytest.approx(
        [mean / precision, mean / precision + math.sqrt(1.0 / precision)], rel=1e-12
    )


@pytest.mark.parametrize("previous", [8, 3, -1])
def test_ddim_with_eta_1_is_ddpm(previous):
    schedule = NoiseSchedule(num_train_timesteps=10, beta_end=0.3)
    output, x, noise = np.random.default_rng(3).normal(size=(3, 6))
    ddim = schedule.ddim_step(output, 9, previous, x, eta=1.0, noise=noise)
    np.testing.assert_allclose(
        ddim, schedule.ddpm_step(output, 9, previous, x, noise), rtol=1e-9, atol=1e-12
    )


def test_found_data_are_held_within_a_range():
    schedule = NoiseSchedule(clip_sample=True, clip_sample_range=0.5, prediction_type="sample")
    x = np.array([1.0, 1.0])
    data, noise = schedule.found(np.array([3.0, 0.25]), 400, x)
    assert data.tolist() == [0.5, 0.25]
    np.testing.assert_allclose(schedule.add_noise(data, noise, 400), x)


def test_the_last_step_may_leave_the_noise_of_timestep_0():
    schedule = NoiseSchedule(num_train_timesteps=4, beta_start=0.19, set_alpha_to_one=False)
    x = np.array([2.0])
    np.testing.assert_allclose(schedule.ddim_step(np.array([0.3]), 0, -1, x), x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoiseSchedule(beta_schedule="linar"), "no beta_schedule 'linar'.*linear"),
        (lambda: NoiseSchedule(prediction_type="x"), "no prediction_type 'x'"),
        (lambda: NoiseSchedule(timestep_spacing="x"), "no timestep_spacing 'x'"),
        (lambda: NoiseSchedule(num_train_timesteps=0), "from 1 to 1,000,000, got 0"),
        (lambda: NoiseSchedule().timesteps(1001), "1001 steps cannot be chosen from 1000"),
        (
            lambda: NoiseSchedule(num_train_timesteps=10, steps_offset=1).timesteps(10),
            "steps_offset 1 puts the first of 10 steps at 10",
        ),
        (lambda: NoiseSchedule().sample(None, np.zeros(2), method="x"), "no method 'x'"),
        (
            lambda: NoiseSchedule().ddim_step(np.zeros(2), 9, 8, np.zeros(2), eta=0.5),
            "eta 0.5 needs noise",
        ),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()

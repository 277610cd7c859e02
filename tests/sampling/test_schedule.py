"""The cyclical schedule: its curve, its stages, where samples fall, warm-up, burn-in, restoring."""

from __future__ import annotations

import math

import pytest
import torch

from rebapl.errors import UserError
from rebapl.sampling import SGHMC, CyclicalSchedule


def sampler(lr=1.0, **settings):
    return SGHMC([torch.nn.Parameter(torch.ones(3))], lr=lr, num_data=10, **{"temperature": 0.5, **settings})


def trace(schedule, steps):
    """The lr, temperature and stage of each iteration, and the iterations after which samples are marked."""
    rows, marks = [], []
    for t in range(1, steps + 1):
        group = schedule.optimizer.param_groups[0]
        rows.append((group["lr"], group.get("temperature"), schedule.exploring))
        schedule.step()
        if schedule.at_sample:
            marks.append(t)
    return rows, marks


def test_each_cycle_is_the_cosine_with_its_floor():
    rows, _ = trace(CyclicalSchedule(sampler(2.0), 10, floor=0.05), 20)
    wanted = [2.0 * max(0.05, 0.5 * (1 + math.cos(math.pi * (t - 1) / 10))) for t in range(1, 11)]
    assert [row[0] for row in rows] == pytest.approx(wanted * 2)
    assert rows[9][0] == 2.0 * 0.05


@pytest.mark.parametrize(("exploration", "exploring"), [(0.0, 0), (0.4, 4), (0.41, 5), (1.0, 10), (0.1 + 0.2, 3)])
def test_exploration_is_the_share_of_iterations_with_rho_below_it(exploration, exploring):
    rows, _ = trace(CyclicalSchedule(sampler(), 10, exploration=exploration), 10)
    assert [row[1] for row in rows] == [0.0] * exploring + [0.5] * (10 - exploring)
    assert [row[2] for row in rows] == [True] * exploring + [False] * (10 - exploring)


@pytest.mark.parametrize(("samples", "wanted"), [(1, [10]), (2, [7, 10]), (3, [6, 8, 10]), (6, [5, 6, 7, 8, 9, 10])])
def test_samples_are_evenly_spaced_in_the_sampling_stage_and_the_last_ends_the_cycle(samples, wanted):
    _, marks = trace(CyclicalSchedule(sampler(), 10, samples_per_cycle=samples), 20)
    assert marks == wanted + [10 + t for t in wanted]


def test_momentum_starts_each_cycle_at_zero_unless_kept():
    for keep in (False, True):
        optimizer = sampler(temperature=0.0)
        schedule = CyclicalSchedule(optimizer, 2, keep_momentum=keep)
        theta = optimizer.param_groups[0]["params"][0]
        for _ in range(2):
            theta.grad = torch.ones(3)
            optimizer.step()
            schedule.step()
        assert bool(optimizer.state[theta]["momentum_buffer"].any()) is keep


def test_cycle_counts_and_ends():
    schedule = CyclicalSchedule(sampler(), 3, cycles=2)
    assert schedule.at_cycle_start
    assert not schedule.at_cycle_end
    seen = []
    while not schedule.done:
        seen.append(schedule.cycle)
        schedule.step()
    assert seen == [0, 0, 0, 1, 1, 1]
    assert schedule.at_cycle_end
    with pytest.raises(UserError, match="2 cycles are over"):
        schedule.step()


@pytest.mark.parametrize("cycles", [1, 2])
def test_warm_up_overrides_the_first_iterations_only(cycles):
    plain, _ = trace(CyclicalSchedule(sampler(), 10), 20)
    warm, _ = trace(CyclicalSchedule(sampler(), 10, warmup_steps=3, warmup_lr=1e-5, warmup_cycles=cycles), 20)
    cold = {0, 1, 2} | ({10, 11, 12} if cycles == 2 else set())
    for t in range(20):
        assert warm[t][0] == (1e-5 if t in cold else plain[t][0])


def test_burn_in_hands_the_first_part_of_each_cycle_to_the_other_optimizer():
    theta = torch.nn.Parameter(torch.ones(3))
    main = SGHMC([theta], lr=1.0, num_data=10)
    other = torch.optim.AdamW([theta], lr=0.1)
    schedule = CyclicalSchedule(main, 10, burn_in=0.5, burn_in_optimizer=other)
    turns = []
    for _ in range(20):
        turns.append(schedule.current is other)
        assert other.param_groups[0]["lr"] == pytest.approx(0.1 * main.param_groups[0]["lr"])
        if schedule.at_cycle_start:
            assert not other.state
        theta.grad = torch.ones(3)
        schedule.current.step()
        schedule.step()
    assert turns == ([True] * 2 + [False] * 8) * 2
    with pytest.raises(UserError, match="go together"):
        CyclicalSchedule(main, 10, burn_in=0.5)


def test_a_restored_schedule_goes_on_as_the_first():
    first = CyclicalSchedule(sampler(), 10, samples_per_cycle=2)
    trace(first, 13)
    second = CyclicalSchedule(sampler(lr=77.0, temperature=9.0), 10, samples_per_cycle=2)
    second.load_state_dict(first.state_dict())
    assert trace(first, 12) == trace(second, 12)


def test_it_is_a_scheduler_of_torch():
    optimizer = torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.ones(3))], "lr": lr} for lr in (1.0, 0.1)], lr=1.0, momentum=0.9
    )
    schedule = CyclicalSchedule(optimizer, 4, floor=0.0)
    assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
    assert schedule.optimizer is schedule.current is optimizer
    for t in range(6):
        wanted = 0.5 * (1 + math.cos(math.pi * (t % 4) / 4))
        assert schedule.get_last_lr() == pytest.approx([wanted, 0.1 * wanted])
        assert schedule.get_lr() == schedule.get_last_lr()
        assert [group["lr"] for group in optimizer.param_groups] == schedule.get_last_lr()
        assert schedule.last_epoch == schedule.steps == t
        optimizer.step()
        schedule.step()


def test_tensor_learning_rates_are_written_in_place():
    lr = torch.tensor(1.0)
    schedule = CyclicalSchedule(sampler(lr), 2, floor=0.0)
    schedule.step()
    assert schedule.optimizer.param_groups[0]["lr"] is lr
    assert lr.item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"steps_per_cycle": 0}, "steps_per_cycle is 0"),
        ({"exploration": 1.4}, "exploration is 1.4"),
        ({"granularity": "batch"}, "step, epoch"),
        ({"granularity": "epoch", "steps_per_epoch": 3}, "dividing"),
        ({"cycles": 0}, "cycles is 0"),
        ({"explorations": 0.5}, "did you mean 'exploration'"),
        ({"warmup_steps": -1}, "accepted are 0 to 9"),
        ({"warmup_steps": 10}, "warmup_steps is 10: accepted are 0 to 9"),
        ({"samples_per_cycle": 7}, "from 1 to 6"),
    ],
)
def test_bad_values_say_which_are_accepted(settings, says):
    with pytest.raises(UserError, match=says):
        CyclicalSchedule(sampler(), **{"steps_per_cycle": 10, **settings})


def test_a_first_cycle_of_another_length_has_its_own_curve_stages_and_samples():
    weight = torch.nn.Parameter(torch.zeros(1))
    sampler = SGHMC([weight], lr=1.0, num_data=1, temperature=0.5)
    schedule = CyclicalSchedule(
        sampler, 2, first_steps=6, first_cycles=2, cycles=4, exploration=0.5, floor=0.0, samples_per_cycle=1
    )
    lengths = [6, 6, 2, 2]  # two chains: the first cycle of each is long
    seen = []
    while not schedule.done:
        seen.append((schedule.cycle, schedule.within, schedule.lr, schedule.exploring))
        schedule.step()
        ended = schedule.steps in (6, 12, 14, 16)
        assert (schedule.at_cycle_end, schedule.at_sample) == (ended, ended)
    expected = [
        (cycle, t, pytest.approx(0.5 * (1 + math.cos(math.pi * t / length))), t < length / 2)
        for cycle, length in enumerate(lengths)
        for t in range(length)
    ]
    assert seen == expected
    assert [schedule.timetable.locate(step) for step in (0, 5, 6, 12, 15)] == [(0, 0), (0, 5), (1, 0), (2, 0), (3, 1)]
    for steps in (0, -1):
        with pytest.raises(UserError, match=f"first_steps is {steps}: it must be at least 1"):
            CyclicalSchedule(sampler, 2, first_steps=steps)

"""What `explain` says of a program, and that senders and evaluations skip free slots."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import ecn_marl
from ecn_marl import lanes
from ecn_marl.baselines.evaluation.episodes import roll_out
from ecn_marl.baselines.oracle import Settings
from ecn_marl.baselines.static import Static

SENDERS = ("dcqcn:paper", "hpcc:hpcc", "reno:rfc5681")
OTHERS = (
    "timely:hpcc",
    "swift:htsim",
    "dcqcn:paper,windowed=1",
    "dcqcn:paper,source=mean_field",
    "dctcp:sigcomm10",
)
KEY = jax.random.key(0)
ENOUGH = 0.9
DEPTH = 48


def env_for(**options):
    """A small network in which most slots are free."""
    return ecn_marl.make("websearch-star-v0", max_steps=2, interval_us=20.0, **options)


OF_THE_BENCHMARK = {
    "features": "flows-memory",
    "reward": "objective-shaped",
    "credit": "flows",
}
"""What learners of the benchmark see and earn: counters of flows, and costs of all flows."""


def skipped(env):
    """Share of the work on slots that skips free ones, in a step."""
    params = env.default_params
    _, state = jax.eval_shape(env.reset, KEY, params)
    action = jax.eval_shape(lambda key: env.action.sample(key, env.num_agents), KEY)
    return lanes.explain(env.step, KEY, state, action, params, shared=(3,)).skipped


@pytest.mark.parametrize(
    "senders", [*SENDERS, *(pytest.param(x, marks=pytest.mark.thorough) for x in OTHERS)]
)
def test_every_sender_leaves_free_slots_alone(senders):
    """What a transport and its feedback do for a free slot can be proved to be nothing."""
    assert skipped(env_for(transport=senders)) > ENOUGH


@pytest.mark.parametrize(
    "options",
    [OF_THE_BENCHMARK, {"pfc": False}, {"loss_recovery": "go-back-n"}],
    ids=["benchmark", "drops", "go-back-n"],
)
def test_counters_and_losses_leave_free_slots_alone(options):
    """What ports count, what flows cost and what full buffers drop: of a free slot, nothing."""
    assert skipped(env_for(**options)) > 0.95


def test_only_broken_paths_are_drawn_anew():
    """Where links may fail, what finds a new path is passed over while none has."""
    failing = {"share": 0.2, "at_us": 0.0}
    env = ecn_marl.make("websearch-v0", max_steps=2, interval_us=20.0, failing=failing)
    assert skipped(env) > 0.8


def test_evaluation_leaves_free_slots_alone():
    """Where parameters are fixed, as in evaluations, the proof has to work with numbers."""
    env = env_for()
    params = env.default_params
    static = Static(env, params, "secn1")
    assert lanes.explain(lambda key: roll_out(env, params, static, key), KEY).skipped > ENOUGH


def test_searches_leave_free_slots_alone():
    """Searches for the best settings fix the parameters, and pass the settings."""
    env = env_for()
    params = env.default_params

    def episode(key, settings):
        return roll_out(env, params, Settings(env, params, settings), key)

    assert lanes.explain(episode, KEY, jnp.ones((1, 1, 3)), shared=(1,)).skipped > ENOUGH


def rows(mask_history):
    """A history of what busy slots hold, as senders keep one, written with a mask or without."""

    def program(busy, log, known):
        busy = lanes.busy(busy)

        def turn(carry, step):
            log, known = carry
            now = jnp.where(busy, known + 1.0, known)
            row = jnp.where(busy, now, log[step % DEPTH]) if mask_history else now
            log = log.at[step % DEPTH].set(row)
            return (log, jnp.where(busy, now + log[(step + 1) % DEPTH], known)), None

        return jax.lax.scan(turn, (log, known), jnp.arange(8))[0]

    return program, (jnp.zeros(32, bool), jnp.zeros((DEPTH, 32)), jnp.zeros(32))


def test_a_row_put_back_where_it_was_read_changes_nothing():
    """A history may keep old rows of free slots; without the mask all rows must be written."""
    masked, args = rows(mask_history=True)
    assert lanes.explain(masked, *args).skipped > ENOUGH
    plain, args = rows(mask_history=False)
    assert lanes.explain(plain, *args).skipped < ENOUGH


def test_it_says_what_prevents_skipping():
    """A loop whose free elements change is reported with the line that changes them."""

    def program(busy, x):
        busy = lanes.busy(busy)
        return jnp.where(busy, x + 1.0, x), x * 2.0 + busy.any()

    whole = lanes.explain(program, jnp.zeros(32, bool), jnp.zeros(32))
    slow = [loop for loop in whole.loops if loop.flag_size == 32 and not loop.skips]
    assert any("test_explain.py" in text for loop in slow for text in loop.prevented_by), whole
    assert "no" in {row[3] for row in whole.rows()}


def test_programs_without_flags_and_bad_ones():
    """Nothing to skip is no share; what cannot be compiled is an error."""
    whole = lanes.explain(lambda x: jnp.exp(x) + 1.0, jnp.zeros(8))
    assert whole.skipped != whole.skipped
    assert "no flags" in str(whole)
    with pytest.raises(lanes.Unsupported, match="while"):
        lanes.explain(lambda x: jax.lax.while_loop(lambda v: v < 3.0, lambda v: v + 1, x), 0.0)

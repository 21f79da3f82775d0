"""ADPG: keyed rollouts, its gradient, and the trained policy."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer
from commands import failure, run

from ecn_marl.baselines import algorithms as port_algorithms
from ecn_marl.baselines.adpg import ADPG, ADPGConfig, later_mean, unsteadiness
from ecn_marl.baselines.algorithms import RATE_ALGORITHMS
from ecn_marl.baselines.rl.rate_rollout import Events, keyed
from ecn_marl.baselines.training.checkpoint import write_json
from ecn_marl.baselines.training.loop import compiled_update, initial_state
from ecn_marl.cli import app
from ecn_marl.envs.rate.measure import Steered, measure
from ecn_marl.envs.rate.scenarios import make_rate, with_options
from ecn_marl.experiments import workflow
from ecn_marl.experiments.rate import resume_rate

TINY = ("senders=4", "envs=4", "rollout=64", "events=16")


def random_events(steps: int, envs: int, flows: int) -> Events:
    """Rows as a rollout has them."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(steps, envs, flows, 4)).astype(np.float32)
    action, error = rng.normal(size=(2, steps, envs, flows)).astype(np.float32)
    valid = rng.random((steps, envs, flows)) < 0.3
    return Events(*map(jnp.asarray, (valid, obs, action, error)))


def test_keyed_rollouts_keep_the_events_of_every_flow_in_order():
    rows = random_events(40, 3, 5)
    events, left_out = keyed(rows, 10)
    missing = 0
    for e in range(3):
        for f in range(5):
            at = np.flatnonzero(rows.valid[:, e, f])
            first, missing = at[:10], missing + len(at[10:])
            assert events.valid[:, e, f].sum() == len(first)
            for name in ("obs", "action", "error"):
                column = np.asarray(getattr(events, name))[:, e, f]
                np.testing.assert_array_equal(
                    column[: len(first)], np.asarray(getattr(rows, name))[first, e, f]
                )
                assert not column[len(first) :].any()
    assert int(left_out) == missing > 0


def test_later_means():
    values = np.array([[3.0, 1.0], [-1.0, 5.0], [2.0, 7.0]])
    present = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    means = later_mean(jnp.asarray(values), jnp.asarray(present), 0.5)
    expected = [
        [(3 - 0.5 + 0.5) / 1.75, (1 + 2.5) / 1.5],
        [(-1 + 1) / 1.5, 5.0],
        [2.0, 0.0],
    ]
    np.testing.assert_allclose(means, expected, rtol=1e-6)


def test_unsteadiness_looks_at_all_later_actions():
    rng = np.random.default_rng(1)
    values, present = rng.normal(size=(9, 2, 3)), (rng.random((9, 2, 3)) < 0.6).astype(float)
    present[:, 0, 0] = np.eye(9)[4]  # one event: nothing to differ from
    squares = []
    for e, f in np.ndindex(2, 3):
        of_flow = values[present[:, e, f] > 0, e, f]
        squares += [np.mean((of_flow[t + 1 :] - of_flow[t]) ** 2) for t in range(len(of_flow) - 1)]
    result = unsteadiness(jnp.asarray(values), jnp.asarray(present))
    np.testing.assert_allclose(result, 0.5 * np.mean(squares), rtol=1e-5)


def test_slow_oscillations_count_as_unsteady():
    """Differences from event to event are small; those over half a period are large."""
    swing = jnp.sin(2 * jnp.pi * jnp.arange(64.0) / 32)[:, None]
    result = unsteadiness(swing, jnp.ones_like(swing))
    assert result > 0.3  # independent values of this variance have 1/2
    assert result > 10 * 0.5 * jnp.mean((swing[1:] - swing[:-1]) ** 2)


def test_the_gradient_is_that_of_the_paper():
    """Minus the mean over events of grad pi(o_t) times the later mean of (target - x) / target."""
    trainer = ADPG(ADPGConfig(senders=(4,), steadiness=0.0, gamma=0.9))
    events, _ = keyed(random_events(20, 2, 3), 8)
    actor = trainer.policy.init(jax.random.key(1), jnp.zeros(4))
    grads, _ = jax.grad(trainer.loss, has_aux=True)(actor, [events])
    expected = jax.tree.map(np.zeros_like, actor)
    slope = jax.jit(jax.grad(lambda net, obs: trainer.policy.apply(net, obs)))
    valid, error = np.asarray(events.valid), -np.asarray(events.error, np.float64)
    for t, e, f in np.argwhere(valid):
        later = np.flatnonzero(valid[t:, e, f]) + t
        weight = 0.9 ** (later - t)
        ahead = (weight * error[later, e, f]).sum() / weight.sum()
        event_grad = slope(actor, events.obs[t, e, f])
        expected = jax.tree.map(
            lambda w, g, a=ahead: w - a * np.asarray(g) / valid.sum(), expected, event_grad
        )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), grads, expected
    )


def test_a_flow_on_target_keeps_its_rate():
    """Whatever the weights are: no biases."""
    trainer = ADPG(ADPGConfig(senders=(4,)))
    for seed in range(3):
        actor = trainer.policy.init(jax.random.key(seed), jnp.zeros(4))
        assert float(trainer.act(actor, jnp.zeros(4))) == 1.0
        factors = trainer.act(actor, 100 * jax.random.normal(jax.random.key(9), (50, 4)))
        assert factors.min() >= 0.8
        assert factors.max() <= 1.2


@pytest.mark.slow
@pytest.mark.thorough
def test_trained_from_scratch_it_fills_links_fairly():
    """Half of the default training, on 4, 8 and 32 senders; two and sixteen afterwards."""
    trainer = ADPG(ADPGConfig())
    state = initial_state(trainer, trainer.default_params, 0)
    update = compiled_update(trainer, 1000)
    state, metrics = update(state, trainer.default_params)
    assert int(metrics["events_left_out"].max()) == 0
    for flows in (2, 16):
        options = {"duration_us": 8e4, "warm_up_us": 5e4, "buffer_mib": 1.0}
        spec = with_options(f"many-to-one-{flows}-v0", options)
        measured = measure(Steered(make_rate(spec), trainer.act), spec, actor=state.actor, seeds=2)
        assert (measured["utilisation"] > 0.9).all()
        assert (measured["fairness"] > 0.8).all()
        assert (measured["queue_us"] < 12.0).all()
        assert (measured["drop_rate"] == 0.0).all()


def test_training_brings_flows_near_their_target():
    """Four senders, from twice the target and more to a fifth of it."""
    trainer = ADPG(ADPGConfig(senders=(4,), envs=8))
    state = initial_state(trainer, trainer.default_params, 0)
    _, metrics = compiled_update(trainer, 150)(state, trainer.default_params)
    reward = np.asarray(metrics["reward"])
    assert reward[-20:].mean() / reward[:5].mean() < 0.25


@pytest.mark.slow
@pytest.mark.thorough
def test_train_resume_and_eval_commands(tmp_path):
    """A run that is stopped and goes on ends where one that was not stopped ends."""
    sets = [word for text in TINY for word in ("--set", text)]
    steps = 4 * 64 * 20
    uninterrupted, resumed = tmp_path / "whole", tmp_path / "parts"
    for folder, n in ((uninterrupted, 2 * steps), (resumed, steps)):
        result = run("train", "adpg", "--out", folder, "--steps", n, *sets)
        assert result.exit_code == 0, result.output
    result = run("train", "--resume", resumed, "--steps", 2 * steps, "--json")
    assert result.exit_code == 0, result.output
    last = [
        json.loads((f / "metrics.jsonl").read_text().splitlines()[-1])
        for f in (uninterrupted, resumed)
    ]
    times = ("seconds", "steps_per_second")
    a, b = ({k: v for k, v in row.items() if k not in times} for row in last)
    assert a == b
    assert a["update"] == 40
    short = ["--env", "duration_us=1.2e4", "--env", "warm_up_us=6e3"]
    scenario = ["--scenario", "many-to-one-4-v0", "--episodes", "2", "--json", *short]
    result = run("eval", uninterrupted, resumed, "rate-agent:line-rate", *scenario)
    assert result.exit_code == 0, result.output
    policies = json.loads(result.stdout)["policies"]
    assert policies[str(uninterrupted)] == policies[str(resumed)]
    assert policies["rate-agent:line-rate"]["utilisation"] == pytest.approx([1.0, 1.0])
    from ecn_marl.render.rate_table import rate_table

    table = rate_table(json.loads(result.stdout))
    assert [column.header for column in table.columns][:3] == [
        "policy",
        *("utilisation %", "fairness %"),
    ]
    assert list(table.columns[1].cells)[-1] == "100.0 ± 0.0"


def test_commands_refuse_options_without_meaning():
    assert "--load = 0.5" in failure("train", "adpg", "--load", "0.5")
    assert "senders" in failure("train", "adpg", "--set", "senders=0")
    assert "setting of adpg" in failure("train", "adpg", "--set", "sender=4")
    assert "--load" in failure("eval", "swift:htsim", "--scenario", "many-to-one-4-v0", "--load", 1)
    wrong = failure("eval", "swoft:x", "--scenario", "many-to-one-4-v0")
    assert "policy = 'swoft:x'" in wrong and "senders such as swift:htsim" in wrong


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"senders": ()}, "senders"),
        ({"gamma": 1.5}, r"gamma = 1\.5"),
        ({"lr": 0.0}, r"lr = 0\.0"),
        ({"rollout": 0}, "rollout = 0"),
        ({"steadiness": -1.0}, "steadiness"),
    ],
)
def test_bad_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ADPGConfig(**change)


VALUES = {
    "flows": "x.csv",
    "config": "pyproject.toml",
    "distributed": "h:1,1,0",
    "randomise": "load=2",
}
"""Values of options that are read before it is known whose they are; 3 for all others."""

USED = {
    "train": (
        *("steps", "envs", "seed", "out", "resume", "set", "save-updates", "save-seconds"),
        *("overwrite", "json"),
    ),
    "bench": (
        *("algorithms", "seeds", "out", "results", "small", "smallest", "largest"),
        *("json", "records", "overwrite"),
    ),
}


def options_of(command: str) -> list[tuple[str, bool]]:
    """Options of a command: its name, and whether it takes a value."""
    group = typer.main.get_command(app)
    options = group.commands[command].params
    return [(x.opts[0][2:], not x.is_flag) for x in options if x.opts[0].startswith("--")]


@pytest.mark.parametrize("command", ["train", "bench"])
def test_every_option_is_used_or_refused_in_one_line(command, tmp_path, monkeypatch):
    monkeypatch.setattr(workflow, "join", lambda *args: True)
    monkeypatch.setattr("ecn_marl.experiments.job_files.read_job", lambda path: {})
    # An option that is not refused would run for hours.
    monkeypatch.setattr(
        "ecn_marl.experiments.rate_bench.rate_bench", lambda *args: pytest.fail("it runs")
    )
    monkeypatch.chdir(tmp_path)
    names = [name for name, _ in options_of(command)]
    assert set(USED[command]) < set(names)
    refused = 0
    for name, takes_value in options_of(command):
        if name not in (*USED[command], "help", "import"):
            value = VALUES.get(name.replace("-", "_"), "pfc=false" if name == "env" else 3)
            message = failure(command, "adpg", f"--{name}", *([value] if takes_value else []))
            option = "pfc" if name == "env" else name
            assert message.startswith(f"ecn-marl: --{option} = ")
            assert "no such option with adpg" in message
            refused += 1
    assert refused >= 10
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_keeps_its_algorithm_seed_and_folder(tmp_path):
    write_json(
        tmp_path / "config.json", {"algorithm": "adpg", "settings": {}, "steps": 8, "seed": 4}
    )
    for args, message in (
        (("ppo",), "algorithm = 'ppo' is not allowed: expected 'adpg', with which"),
        (("ippo",), "algorithm = 'ippo' is not allowed: expected 'adpg', with which"),
        (("--seed", 0), "seed = 0 is not allowed: expected 4, with which"),
        (("--out", tmp_path / "x"), "with which"),
        (("--set", "envs=3"), "goes on as it was started"),
        (("--overwrite",), "goes on as it was started"),
        (("--episodes", 3), "ecn-marl eval"),
    ):
        assert message in failure("train", *args, "--resume", tmp_path)
    ports = tmp_path / "ports"
    ports.mkdir()
    write_json(ports / "config.json", {"algorithm": "ippo", "settings": {}, "steps": 8, "seed": 0})
    assert "algorithm = 'adpg' is not allowed: expected 'ippo'" in failure(
        "train", "adpg", "--resume", ports
    )
    with pytest.raises(ValueError, match="learner of rates 'ippo'"):
        resume_rate(ports)


def test_unknown_algorithms_are_told_all_there_are():
    """Learners of ports and of flows, wherever both are allowed; the other kind is named."""
    every = {*port_algorithms.ALGORITHMS, *RATE_ALGORITHMS}
    for args in (("train", "xyz"), ("train",)):
        words = failure(*args).replace(":", ",").replace("of ", ",").replace(" (", ",").split(",")
        assert every <= {word.strip() for word in words}
    text = failure("bench", "adpg", "--algorithms", "xyz")
    assert all(f" {name}" in text for name in (*RATE_ALGORITHMS, "swift", "hpcc"))
    for args in (("bench", "--algorithms", "adpg"), ("tune", "incast-v0", "apg", "--out", "x")):
        assert "a learner whose agents are ports" in failure(*args)

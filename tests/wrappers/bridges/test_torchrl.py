"""TorchRL's face of the batch: its own checks, and the PettingZoo face step by step."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import HORIZON, OPTIONS, SCENARIO, tiny

import ecn_marl
from ecn_marl.envs.parallel import EcnParallelEnv

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from torchrl.envs import (  # noqa: E402 - after importorskip
    PettingZooWrapper,
    RewardSum,
    TransformedEnv,
    check_env_specs,
)

from ecn_marl.wrappers.bridges.torchrl import (  # noqa: E402 - after importorskip
    EcnTorchRL,
    torchrl_env,
)

ACTIONS = ("discrete", "multidiscrete", "box")


@pytest.mark.parametrize("actions", ACTIONS)
def test_torchrl_s_own_checks(actions):
    env = EcnTorchRL(tiny(actions), 2)
    check_env_specs(env)
    face = ecn_marl.parallel_env(SCENARIO, actions=actions, **OPTIONS)
    space = env.full_action_spec["agents", "action"]
    samples = space.rand().numpy()
    assert all(
        face.action_space("port_0").contains(x) for x in samples.reshape(-1, *samples.shape[2:])
    )
    wrapped = PettingZooWrapper(face)
    check_env_specs(wrapped)
    assert wrapped.group_map == {"port": face.possible_agents}


@pytest.fixture(scope="module")
def env():
    return EcnTorchRL(tiny(), 2)


def test_networks_are_those_of_the_pettingzoo_face(env):
    env.set_seed(7)
    rollout = env.rollout(2 * HORIZON, break_when_any_done=False)
    for i in range(2):
        face = EcnParallelEnv(env.core)
        obs, _ = face.reset(seed=7 + i)
        for t in range(2 * HORIZON):
            entry = rollout[i, t]
            observed = np.stack(list(obs.values()))
            np.testing.assert_allclose(
                entry["agents", "observation"], observed, rtol=2e-5, atol=1e-6
            )
            action = entry["agents", "action"].numpy()
            obs, reward, *_ = face.step(dict(zip(face.agents, action, strict=True)))
            after = entry["next"]
            np.testing.assert_allclose(
                after["agents", "observation"], np.stack(list(obs.values())), rtol=2e-5, atol=1e-6
            )
            paid = after["agents", "reward"][:, 0]
            np.testing.assert_allclose(paid, list(reward.values()), rtol=2e-5)
            ended = t % HORIZON == HORIZON - 1
            flags = [after[k].item() for k in ("done", "truncated", "terminated")]
            assert flags == [ended, ended, False]
            if ended:
                obs, _ = face.reset()
    assert rollout["next", "agents", "reward"].std() > 0


def test_memory_is_that_of_jax_and_is_left_alone(env):
    env.set_seed(0)
    start = env.reset()
    address = start["agents", "observation"].data_ptr()
    assert address == env._obs.unsafe_buffer_pointer()
    copy = start["agents", "observation"].clone()
    env.rollout(HORIZON + 1, auto_reset=False, tensordict=start, break_when_any_done=False)
    torch.testing.assert_close(start["agents", "observation"], copy, rtol=0, atol=0)


def test_networks_can_be_reset_apart(env):
    env.set_seed(0)
    data = env.rand_step(env.reset())["next"]
    before = data["agents", "observation"].clone()
    mask = torch.tensor([[True], [False]])
    reset_obs = env.reset(data.clone().set("_reset", mask))["agents", "observation"]
    torch.testing.assert_close(reset_obs[1], before[1], rtol=0, atol=0)
    assert not torch.equal(reset_obs[0], before[0])


def test_transforms_take_it(env):
    summed = TransformedEnv(
        env, RewardSum(in_keys=[("agents", "reward")], out_keys=[("agents", "return")])
    )
    rollout = summed.rollout(HORIZON)
    expected = rollout["next", "agents", "reward"].cumsum(1)
    torch.testing.assert_close(rollout["next", "agents", "return"], expected)


def test_what_is_not_allowed_is_named():
    env = torchrl_env("incast-v0", 3, max_steps=9, actions="discrete")
    assert env.batch_size == (3,) and int(env._steps[0]) == 9
    with pytest.raises(ValueError, match="num_networks"):
        torchrl_env("incast-v0", 0)
    for steps in (0, 2**31):
        with pytest.raises(ValueError, match="max_steps"):
            torchrl_env("incast-v0", 1, max_steps=steps)
    assert torchrl_env("incast-v0", 1, interval_us=300.0, max_steps=50).core.horizon == 50
    with pytest.raises(ValueError, match="incast-v0"):
        torchrl_env("incst-v0")

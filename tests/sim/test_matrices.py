"""Traffic matrices: weights as written, and flows that follow them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecn_marl
from ecn_marl.sim import Poisson, leaf_spine, star
from ecn_marl.sim.traffic import matrices, sizing

KEY = jax.random.key(3)


def drawn(source, hosts, ticks=40):
    """Number of flows from host to host, `[H, H]`."""
    nic = jnp.full(hosts, 3125.0)
    params = source.default_params()
    state = source.init(KEY, params, nic)
    offer = jax.jit(source.offer)
    advance = jax.jit(source.advance, static_argnums=4)
    counts = np.zeros((hosts, hosts))
    for _ in range(ticks):
        flows = offer(state, params, nic)
        np.add.at(counts, (np.asarray(flows.src), np.asarray(flows.dst)), 1)
        state = advance(state, params, nic, jnp.int32(source.width), 1.0)
    return counts


def expected(matrix):
    return np.array(matrix) / np.sum(matrix)


NET = leaf_spine(3, 2, 2)
MATRICES = {
    "uniform": matrices.uniform(6),
    "rack-local": matrices.rack_local(NET, 0.7),
    "gravity": matrices.by_load([1, 0, 2, 0, 3, 1], [1, 1, 0, 0, 1, 5]),
    "permutation": matrices.permutation(6, seed=2),
    "shift": matrices.shift(6, 2),
    "hot": matrices.incast_to(6, (4,), 0.5),
}


@pytest.mark.parametrize("name", MATRICES)
def test_flows_follow_the_matrix(name):
    """Chi-squared against the weights; nothing is drawn where the weight is 0."""
    source = Poisson(matrix=MATRICES[name], width=500)
    counts, share = drawn(source, 6), expected(MATRICES[name])
    assert (counts[share == 0] == 0).all()
    n, cells = counts.sum(), share > 0
    squared = ((counts - n * share)[cells] ** 2 / (n * share[cells])).sum()
    degrees = cells.sum() - 1
    assert squared < degrees + 5 * np.sqrt(2 * degrees) + 5


def test_named_matrices_have_their_properties():
    local, edge = expected(MATRICES["rack-local"]), np.array(NET.edge)
    assert local[edge[:, None] == edge].sum() == pytest.approx(0.7)
    np.testing.assert_allclose(local.sum(1), 1 / 6)
    np.testing.assert_allclose(local.sum(0), 1 / 6)
    cycle = expected(MATRICES["permutation"])
    assert ((cycle > 0).sum(0) == 1).all() and ((cycle > 0).sum(1) == 1).all()
    hot = expected(MATRICES["hot"])
    assert hot[:, 4].sum() == pytest.approx(0.5)
    np.testing.assert_allclose(np.delete(hot.sum(0), 4), 0.1)
    assert (np.array(MATRICES["shift"])[np.arange(6), (np.arange(6) + 2) % 6] == 1).all()


def test_uniform_matrix_is_the_default_in_rates_and_loads():
    plain, explicit = Poisson(load=0.4), Poisson(load=0.4, matrix=matrices.uniform(6))
    a, b = (sizing.demand_of(s, NET, 20.0) for s in (plain, explicit))
    assert a.per_us == b.per_us
    np.testing.assert_allclose(a.pairs, b.pairs)
    np.testing.assert_allclose(sizing.link_loads([a], NET), sizing.link_loads([b], NET))


def test_a_hot_receiver_needs_more_slots():
    """Half of all flows to one of six hosts: three times its link at load 1, so 0.3 is near it."""
    hot = Poisson(load=0.3, matrix=MATRICES["hot"])
    loads = sizing.link_loads([sizing.demand_of(hot, star(6), 20.0)], star(6))
    assert loads[6 + 4] == pytest.approx(3 * 0.3 * 1.048, rel=0.01)
    slots = [
        ecn_marl.make("websearch-star-v0", topology=star(6), traffic=(s,), slots="auto").sim.slots
        for s in (Poisson(load=0.3), hot)
    ]
    assert slots[1] > 2 * slots[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: matrices.as_matrix([[0, 1]]), "H x H hosts"),
        (lambda: matrices.as_matrix([[0, -1], [1, 0]]), "weights >= 0"),
        (lambda: matrices.as_matrix(np.zeros((3, 3))), "some above 0"),
        (lambda: Poisson(matrix=((1.0, 1.0), (1.0, 0.0))), r"matrix\[0\]\[0\] = .* itself"),
        (lambda: matrices.rack_local(star(4), 0.5), "two racks at least"),
        (lambda: matrices.rack_local(NET, 1.5), r"share in \[0, 1\]"),
        (lambda: matrices.shift(4, 8), "4 hosts do not divide"),
        (lambda: matrices.incast_to(4, (0, 1, 2, 3), 0.5), "not all of 0 to 3"),
        (
            lambda: ecn_marl.make("websearch-star-v0", traffic=(Poisson(matrix=MATRICES["hot"]),)),
            "one for each of 8 hosts",
        ),
    ],
)
def test_bad_matrices(make, message):
    with pytest.raises(ValueError, match=message):
        make()

from math import log1p

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.observation import ObservationSpec, masks
from tests.policies.cluster_views import server, view


def test_observation_is_equation_1_in_order() -> None:
    """The vector is [log1p q_fifo, log1p c_done, then (log1p q_i, P_i / limit, U_i) for each server]."""
    seen = view(server(3, power_w=125.0, utilization=0.5), server(0, power_w=60.0, utilization=0.25), fifo=7)
    observed = ObservationSpec((250.0, 100.0)).observe(replace(seen, completed=20))
    wanted = [log1p(7), log1p(20), log1p(3), 0.5, 0.5, log1p(0), 0.6, 0.25]
    assert observed.dtype == np.float32
    assert observed.tolist() == pytest.approx(wanted, rel=1e-6)


@given(st.integers(1, 9), st.integers(0, 10**9))
def test_observation_is_finite_and_of_the_stated_size(servers: int, completed: int) -> None:
    """Any cluster gives 2 + 3 N finite numbers."""
    spec = ObservationSpec((100.0,) * servers)
    observed = spec.observe(replace(view(*[server(10**6)] * servers, fifo=10**6), completed=completed))
    assert observed.shape == (spec.size,) == (2 + 3 * servers,)
    assert np.isfinite(observed).all()
    assert observed.max() < 25


def test_another_number_of_servers_is_refused() -> None:
    """A view of two servers cannot be read by a specification of three."""
    with pytest.raises(ValueError, match="argument"):
        ObservationSpec((1.0, 1.0, 1.0)).observe(view(server(), server()))


@pytest.mark.parametrize("limits", [(), (0.0,), (100.0, -1.0)])
def test_power_limits_must_be_positive(limits: tuple[float, ...]) -> None:
    """No server, or a limit that can't be divided by, is refused at once."""
    with pytest.raises(ValueError, match="power limit"):
        ObservationSpec(limits)


def test_masks_say_what_the_view_says() -> None:
    servers, widths = masks(view(server(valid=False), server(widths=(True, True, False, False))))
    assert servers.tolist() == [False, True]
    assert widths.tolist() == [[True] * 4, [True, True, False, False]]

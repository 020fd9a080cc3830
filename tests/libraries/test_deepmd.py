"""DeePMD-kit learns a potential on two ranks, over ``horovod.tensorflow`` in a session of TensorFlow 1."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.libraries.environments import environment, horovodrun, nightly

JOB = Path(__file__).with_name("deepmd_job.py")
ATOMS = 6
LENGTH = 2.0
STEPS = 200
pytestmark = [nightly, pytest.mark.timeout(900)]


def write_system(folder: Path, frames: int, seed: int) -> None:
    """Six atoms with a spring between every two: energies and forces follow from the places."""
    random = np.random.default_rng(seed)
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], dtype=float)
    places = LENGTH * corners[:ATOMS] + random.normal(scale=0.15, size=(frames, ATOMS, 3))
    apart = places[:, :, None] - places[:, None]
    lengths = np.sqrt((apart**2).sum(-1)) + np.eye(ATOMS) * LENGTH  # an atom does not pull itself
    stretched = lengths - LENGTH
    forces = -(stretched[..., None] * apart / lengths[..., None]).sum(2)
    kept = folder / "set.000"
    kept.mkdir(parents=True)
    (folder / "type.raw").write_text("0\n" * ATOMS)
    (folder / "type_map.raw").write_text("X\n")
    (folder / "nopbc").touch()
    np.save(kept / "coord.npy", places.reshape(frames, -1))
    np.save(kept / "energy.npy", (stretched**2).sum((1, 2)) / 4)
    np.save(kept / "force.npy", forces.reshape(frames, -1))
    np.save(kept / "box.npy", np.tile(20 * np.eye(3).ravel(), (frames, 1)))


def settings() -> dict[str, object]:
    return {
        "model": {
            "type_map": ["X"],
            "descriptor": {
                "type": "se_e2_a",
                "sel": [ATOMS],
                "rcut": 5.0,
                "rcut_smth": 4.0,
                "neuron": [4, 8],
                "axis_neuron": 2,
            },
            "fitting_net": {"neuron": [16, 16]},
        },
        "learning_rate": {"type": "exp", "start_lr": 0.005, "stop_lr": 1e-4, "decay_steps": 50},
        "loss": {"start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 100, "limit_pref_f": 1},
        "training": {
            "training_data": {"systems": ["learned"], "batch_size": 4},
            "numb_steps": STEPS,
            "disp_freq": STEPS // 2,
            "save_freq": STEPS,
        },
    }


def test_deepmd_kit_learns_a_potential(tmp_path: Path) -> None:
    programs = environment("deepmd")
    write_system(tmp_path / "learned", 64, seed=1)
    write_system(tmp_path / "new", 32, seed=2)
    (tmp_path / "input.json").write_text(json.dumps(settings()))

    # No seed is set: ranks begin with weights of their own, and see the rows in an order of their own.
    said = horovodrun(programs, "python", str(JOB), cwd=tmp_path)
    assert len(re.findall(r"Scale learning rate by coef: 2\.0", said)) == 2, said
    assert "[1]<stderr>" in said
    one, other = (np.load(tmp_path / f"weights-{rank}.npz") for rank in range(2))
    assert one.files == other.files
    assert len(one.files) > 5
    for name in one.files:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)

    horovodrun(programs, "dp", "--tf", "freeze", "-o", "model.pb", cwd=tmp_path, ranks=1)
    told = horovodrun(programs, "dp", "--tf", "test", "-m", "model.pb", "-s", "new", cwd=tmp_path, ranks=1)
    found = re.search(r"Force  RMSE\s*:\s*(\S+)", told)
    assert found is not None, told
    forces = np.load(tmp_path / "new" / "set.000" / "force.npy")
    assert float(found[1]) < np.sqrt((forces**2).mean()) / 2, told

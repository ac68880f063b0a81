"""What a child's environment says, and that the user's own word counts."""

from __future__ import annotations

import pytest

from vrampool_worker.devices.environment import cpu_env, cuda_env

UUID = "GPU-1"


def test_frameworks_do_not_take_the_whole_card_at_their_start():
    env = cuda_env(UUID, 2, {})
    assert env["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert env["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"


def test_what_the_user_set_himself_wins():
    env = cuda_env(UUID, 2, {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "OMP_NUM_THREADS": "8"})
    assert env["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
    assert env["OMP_NUM_THREADS"] == "8"
    assert "MKL_NUM_THREADS" not in env


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ({}, ["expandable_segments:True"] * 2),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
            ["max_split_size_mb:64,expandable_segments:True"] * 2,
        ),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, ["expandable_segments:False"] * 2),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, ["backend:cudaMallocAsync"] * 2),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "a:1", "PYTORCH_ALLOC_CONF": "b:2"},
            ["a:1,expandable_segments:True", "b:2,expandable_segments:True"],
        ),
    ],
)
def test_expandable_segments_are_added_to_the_users_allocator_options(user, expected):
    env = cuda_env(UUID, 2, user)
    assert [env["PYTORCH_CUDA_ALLOC_CONF"], env["PYTORCH_ALLOC_CONF"]] == expected


def test_the_devices_mask_is_ours_whatever_the_user_has_set():
    assert cuda_env(UUID, 1, {"CUDA_VISIBLE_DEVICES": "0,1"})["CUDA_VISIBLE_DEVICES"] == UUID


def test_on_the_cpu_no_gpu_is_in_sight():
    assert cpu_env(1, {"CUDA_VISIBLE_DEVICES": "0"})["CUDA_VISIBLE_DEVICES"] == ""

"""Models larger than the lease, on a small transformer with random weights."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from vrampool import training
from vrampool.errors import InputError
from vrampool.training import runtime

torch = pytest.importorskip("torch")
MIB = 2**20


class Transformer(torch.nn.Module):
    """Six encoder layers of 0.8 MB each."""

    _no_split_modules = ("TransformerEncoderLayer",)

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(100, width)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(6)
        )
        self.head = torch.nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(1))


def build() -> Transformer:
    torch.manual_seed(0)
    return Transformer()


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.arange(24).reshape(2, 12)


@pytest.fixture
def _accelerate() -> None:
    pytest.importorskip("accelerate", reason="load_offloaded needs accelerate: pip install 'vrampool[offload]'")


pytestmark = pytest.mark.usefixtures("_accelerate")


@pytest.mark.parametrize("source", [build, build()], ids=["callable", "module"])
@torch.no_grad()
def test_a_model_that_fits_only_in_part_gives_the_same_results(source, tokens, tmp_path):
    expected = build().eval()(tokens)
    model = training.load_offloaded(source, max_memory={"cpu": 2 * MIB}, offload_folder=tmp_path)
    assert {"cpu", "disk"} <= set(map(str, model.hf_device_map.values()))
    held = sum(p.numel() * p.element_size() for p in model.parameters() if not p.is_meta)
    assert 0 < held <= 2 * MIB
    assert list(tmp_path.glob("*.dat")), "the rest is on disk"
    torch.testing.assert_close(model(tokens), expected)
    torch.testing.assert_close(model(tokens), expected)


@torch.no_grad()
@pytest.mark.parametrize("limit", [1000, 100 * MIB], ids=["nothing fits", "all fits"])
def test_a_model_that_fits_not_at_all_or_as_a_whole_gives_the_same_results(limit, tokens, tmp_path):
    model = training.load_offloaded(build, max_memory={"cpu": limit}, offload_folder=tmp_path)
    torch.testing.assert_close(model(tokens), build().eval()(tokens))
    assert all(parameter.is_meta == (limit == 1000) for parameter in model.parameters())


@torch.no_grad()
def test_without_a_folder_the_disk_part_goes_to_a_temporary_one(tokens):
    model = training.load_offloaded(build, max_memory={"cpu": 2 * MIB})
    torch.testing.assert_close(model(tokens), build().eval()(tokens))


@torch.no_grad()
def test_the_lease_of_a_cpu_device_decides_what_stays_in_memory(tokens, told, tmp_path):
    lease = psutil.Process().memory_info().rss + 3 * MIB
    runtime.install(told.runtime(device="cpu", lease_bytes=lease))
    limits = training.lease_memory()
    assert 0 < limits["cpu"] <= 3 * MIB * 0.75 + MIB
    model = training.load_offloaded(build, offload_folder=tmp_path)
    assert "disk" in model.hf_device_map.values()
    torch.testing.assert_close(model(tokens), build().eval()(tokens))


@torch.no_grad()
def test_a_model_of_transformers_is_loaded_by_its_class(tmp_path):
    """Saved with random weights first: from a checkpoint the model is never whole in memory."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=6, num_attention_heads=4
    )
    torch.manual_seed(0)
    plain = transformers.LlamaForCausalLM(config).eval()
    plain.save_pretrained(tmp_path / "checkpoint")
    model = training.load_offloaded(
        transformers.LlamaForCausalLM,
        tmp_path / "checkpoint",
        max_memory={"cpu": 2 * MIB},
        offload_folder=tmp_path / "rest",
    )
    assert {"cpu", "disk"} <= set(model.hf_device_map.values())
    tokens = torch.arange(10).reshape(1, 10)
    torch.testing.assert_close(model(tokens).logits, plain(tokens).logits)


def test_the_dtype_is_that_of_the_whole_model(tmp_path):
    model = training.load_offloaded(build, dtype=torch.bfloat16, max_memory={"cpu": 2 * MIB}, offload_folder=tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def gpu(monkeypatch: pytest.MonkeyPatch, free: int, allocated: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 100 * free))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: allocated)


def test_on_a_gpu_weights_get_a_share_of_what_the_cap_leaves(monkeypatch, told):
    gpu(monkeypatch, free=1000 * MIB, allocated=20 * MIB)
    runtime.install(told.runtime(device="cuda", lease_bytes=700 * MIB, cap_bytes=100 * MIB, slots=4))
    limits = training.lease_memory(weights_share=0.5)
    assert limits[0] == 40 * MIB
    assert 0 < limits["cpu"] <= psutil.virtual_memory().total / 8, "host memory is shared among the trials of the host"


def test_the_cards_free_memory_bounds_the_lease_and_stands_in_for_it_outside_a_pool(monkeypatch, told):
    gpu(monkeypatch, free=60 * MIB, allocated=0)
    assert training.lease_memory(weights_share=1.0)[0] == 60 * MIB
    runtime.install(told.runtime(device="cuda", cap_bytes=100 * MIB))
    assert training.lease_memory(weights_share=1.0)[0] == 60 * MIB


@pytest.mark.parametrize("share", [0.0, 1.5, -1])
def test_shares_beyond_the_whole_are_refused(share):
    with pytest.raises(InputError, match="weights_share"):
        training.lease_memory(weights_share=share)


def test_what_makes_no_module_is_refused(tmp_path):
    with pytest.raises(InputError, match="made a dict"):
        training.load_offloaded(dict, max_memory={"cpu": MIB}, offload_folder=tmp_path)


def test_without_accelerate_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(InputError, match=r"pip install 'vrampool\[offload\]'"):
        training.load_offloaded(build)


def test_a_lease_that_holds_no_layer_is_told(told):
    from vrampool.training import offloading

    runtime.install(told.runtime())
    offloading._check_whole({"embedding": "cpu", "layers": "disk"}, {0: 1000, "cpu": MIB}, build())
    assert "larger `vram`" in told.hints[0]


def test_folders_are_removed_with_the_process(tmp_path):
    import subprocess

    code = (
        "import torch\nfrom vrampool import training\n"
        "model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(4)])\n"
        "training.load_offloaded(model, max_memory={'cpu': 200_000})\n"
        "from pathlib import Path; print(len(list(Path(training.offloading._folders[0].name).iterdir())) > 0)\n"
    )
    env = {"TMPDIR": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "True", done.stderr
    assert list(Path(tmp_path).glob("vrampool-offload-*")) == []

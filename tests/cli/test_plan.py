"""`orin-rerank plan` as a person meets it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from cli.conftest import TESTS, orin_rerank
from orin_rerank.cli.plan import BoardName
from orin_rerank.lifecycle.published import BOARDS, MODELS

if TYPE_CHECKING:
    from pathlib import Path

MINI = TESTS.parent / "engines" / "mini"


def test_the_boards_are_those_of_the_table() -> None:
    assert [name.value for name in BoardName][1:] == list(BOARDS)


def test_all_models_on_a_board() -> None:
    done = orin_rerank("plan", "--board", "agx-orin-32", COLUMNS="120")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "Jetson AGX Orin 32GB: 30.0 GiB, of which 27.1 GiB may be used"
    rows = {line.split()[0]: line for line in lines[3:8]}
    assert list(rows) == list(MODELS)
    assert "GiB of swap" in rows["vl-8b"]
    assert "recommended for text and images: Qwen3-VL-Reranker-2B" in lines
    assert "recommended for text alone: Qwen3-Reranker-4B" in lines
    assert "reckoned, not measured" in lines[-1]


def test_one_model_in_full() -> None:
    done = orin_rerank("plan", "--board", "agx-orin-64", "--model", "vl-8b", COLUMNS="120")
    assert done.returncode == 0
    for words in ("Qwen3-VL-Reranker-8B", "swapped", "INT8 alone", "to download", "50 images", "30W", "fits well"):
        assert words in done.stdout


@pytest.mark.parametrize("board", [["--board", "agx-orin-64"], ["--board", "orin-nx-16"], []])
def test_no_number_is_cut_on_a_terminal_of_80_columns(board: list[str]) -> None:
    done = orin_rerank("plan", *board, "--model", "vl-8b", COLUMNS="80")
    assert done.returncode == 0
    assert "…" not in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["in", "memory", "both", "swapped", "INT8", "alone"] in rows


def test_each_way_to_serve_adds_up_to_what_is_told() -> None:
    done = orin_rerank("plan", "--board", "agx-orin-64", "--model", "vl-8b", COLUMNS="80")
    rows = {line[:9].strip(): line[9:] for line in done.stdout.splitlines()}
    units = {"GiB": 1.0, "MiB": 1 / 1024}

    def gibs(name: str) -> list[float]:
        words = rows[name].split()
        return [float(size) * units[unit] for size, unit in zip(words[::2], words[1::2], strict=True)]

    parts = [gibs(name) for name in ("weights", "buffers", "scratch", "caches", "CUDA", "process")]
    assert [sum(column) for column in zip(*parts, strict=True)] == pytest.approx(gibs("in all"), abs=0.2)
    assert rows["tokens"].split() == ["10,240"] * 3
    assert rows["in flight"].split() == ["2"] * 3


def test_what_does_not_fit_is_told_with_the_numbers() -> None:
    done = orin_rerank("plan", "--board", "orin-nano-8", "--model", "Qwen3-VL-Reranker-8B", COLUMNS="120")
    assert done.returncode == 0
    assert "does not fit" in done.stdout
    assert "this machine has 5.5 GiB for it" in done.stdout
    assert "but: needs" in done.stdout


def test_json_for_a_bundle() -> None:
    value = json.loads(orin_rerank("plan", "--board", "orin-nano-8", "--model", str(MINI), "--json").stdout)
    (model,) = value["models"]
    assert (model["key"], model["name"], model["best"]) == (str(MINI), "orin-rerank-mini", "swapped")
    weights = (MINI / "model.safetensors").stat().st_size
    swapped = next(policy for policy in model["policies"] if policy["policy"] == "swapped")
    assert swapped["weights"] == weights
    parts = ("weights", "buffers", "scratch", "caches", "overhead", "process")
    assert sum(swapped[part] for part in parts) == swapped["needed_bytes"] <= swapped["usable_bytes"]
    assert value["recommended"] == {"vl": str(MINI), "text": None}
    assert {time["mode"] for time in model["times"]} == {mode["name"] for mode in value["board"]["modes"]}


def test_json_where_nothing_fits() -> None:
    value = json.loads(orin_rerank("plan", "--board", "orin-nano-4", "--json").stdout)
    assert [model["best"] for model in value["models"]] == [None] * len(MODELS)
    assert value["recommended"] == {"vl": None, "text": None}
    assert all(policy["problem"] for model in value["models"] for policy in model["policies"])


@pytest.mark.parametrize(("compatible", "modes"), [("p3767-0005-super", 2), ("p3767-0005", 1)])
def test_this_machine_is_planned_by_what_it_is(tmp_path: Path, compatible: str, modes: int) -> None:
    (tmp_path / "proc" / "device-tree").mkdir(parents=True)
    (tmp_path / "proc" / "device-tree" / "compatible").write_bytes(
        f"nvidia,p3768-0000+{compatible}\0nvidia,tegra234\0".encode()
    )
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:        7802880 kB\n")
    done = orin_rerank("plan", "--json", ORIN_RERANK_BOARD_ROOT=str(tmp_path))
    board = json.loads(done.stdout)["board"]
    assert (board["name"], board["engine"]) == ("Jetson Orin Nano 8GB", "tensorrt")
    assert board["memory_bytes"] == 7802880 << 10
    assert len(board["modes"]) == modes


def test_a_machine_that_is_no_jetson_is_planned_on_its_processor(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:       32802880 kB\n")
    done = orin_rerank("plan", ORIN_RERANK_BOARD_ROOT=str(tmp_path), COLUMNS="120")
    assert done.returncode == 0
    assert "on its processor: 31.3 GiB" in done.stdout
    assert "limits" not in done.stdout


@pytest.fixture
def nano(tmp_path: Path) -> dict[str, str]:
    """Variables by which this machine is an Orin Nano, with a settings file."""
    (tmp_path / "proc" / "device-tree").mkdir(parents=True)
    compatible = b"nvidia,p3768-0000+p3767-0005-super\0nvidia,tegra234\0"
    (tmp_path / "proc" / "device-tree" / "compatible").write_bytes(compatible)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:        7802880 kB\n")
    file = tmp_path / "config.toml"
    file.write_text(f'[model]\nbundle = "{MINI}"\n[engine]\nmemory_bytes = "3 GiB"\nmax_tokens = 700\n')
    return {"ORIN_RERANK_BOARD_ROOT": str(tmp_path), "ORIN_RERANK_CONFIG": str(file)}


class TestSettings:
    def test_this_machine_is_planned_by_its_settings(self, nano: dict[str, str]) -> None:
        value = json.loads(orin_rerank("plan", "--json", **nano).stdout)
        assert value["board"]["usable_bytes"] == 3 << 30
        models = {model["key"]: model for model in value["models"]}
        assert list(models) == [*MODELS, str(MINI)]
        (way,) = [policy for policy in models[str(MINI)]["policies"] if policy["policy"] == "one"]
        assert (way["fits"], way["max_tokens"], way["usable_bytes"]) == (True, 700, 3 << 30)
        assert models["vl-2b"]["best"] is None
        assert "this machine has 3.0 GiB for it" in models["vl-2b"]["policies"][2]["problem"]

    def test_an_option_goes_before_them(self, nano: dict[str, str]) -> None:
        value = json.loads(orin_rerank("plan", "--json", "--model", str(MINI), "--max-tokens", "500", **nano).stdout)
        assert value["models"][0]["policies"][2]["max_tokens"] == 500

    def test_the_processor_is_planned_for_where_it_is_to_compute(self, nano: dict[str, str]) -> None:
        done = orin_rerank("plan", "--json", ORIN_RERANK__ENGINE__DEVICE="cpu", **nano)
        board = json.loads(done.stdout)["board"]
        assert (board["engine"], board["modes"]) == ("onnxruntime-cpu", [])
        assert board["name"].endswith("on its processor")

    def test_another_board_goes_by_a_file_that_is_named(self, nano: dict[str, str], tmp_path: Path) -> None:
        named = ("--config", nano.pop("ORIN_RERANK_CONFIG"))
        free = json.loads(orin_rerank("plan", "--json", "--board", "orin-nx-16", **nano).stdout)
        assert [model["key"] for model in free["models"]] == list(MODELS)
        set_ = json.loads(orin_rerank("plan", "--json", "--board", "orin-nx-16", *named, **nano).stdout)
        assert set_["board"]["usable_bytes"] == 3 << 30 < free["board"]["usable_bytes"]

    def test_wrong_settings_are_refused(self, nano: dict[str, str], tmp_path: Path) -> None:
        (tmp_path / "config.toml").write_text("[engine]\nmax_tokens = 1\n")
        done = orin_rerank("plan", **nano)
        assert done.returncode == 2
        assert "config.toml:2: max_tokens must be from 256" in done.stderr


def test_a_model_that_is_none(tmp_path: Path) -> None:
    done = orin_rerank("plan", "--model", "vl-70b")
    assert done.returncode == 2
    assert (
        "--model vl-70b: is neither a published model (vl-2b, vl-8b, 0.6b, 4b, 8b) nor a bundle's folder" in done.stderr
    )
    done = orin_rerank("plan", "--model", str(tmp_path))
    assert done.returncode == 66
    assert "manifest.json" in done.stderr
    shutil.copyfile(MINI / "manifest.json", tmp_path / "manifest.json")
    done = orin_rerank("plan", "--model", str(tmp_path))
    assert done.returncode == 66
    assert "tokenizer.json" in done.stderr


def test_a_bundle_of_the_settings_that_is_not_there_yet_is_left_out_and_told(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[model]\nbundle = "/srv/models/not-there-yet"\n')
    done = orin_rerank("plan", "--config", str(config), "--json")
    value = json.loads(done.stdout)
    assert (done.returncode, len(value["models"])) == (0, len(MODELS))
    assert value["problem"].startswith("the bundle of the settings is left out: /srv/models/not-there-yet")
    shown = " ".join(orin_rerank("plan", "--config", str(config)).stdout.split())
    assert "the bundle of the settings is left out: /srv/models/not-there-yet" in shown
    assert orin_rerank("plan", "--config", str(config), "--model", "/srv/models/not-there-yet").returncode == 2

"""Checks of the daemon: settings, socket, state, preparation."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lifecycle.doctor.places import APP, SERVING, board, context_of, said
from orin_rerank.lifecycle.doctor.context import DaemonAnswer
from orin_rerank.lifecycle.doctor.finding import Verdict
from orin_rerank.lifecycle.doctor.service import (
    check_preparation,
    check_problems,
    check_settings,
    check_socket,
    check_state,
)
from orin_rerank.lifecycle.first_boot.journal import Journal, Outcome
from orin_rerank.lifecycle.first_boot.progress import Step


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(file))
        server.listen()
        file.chmod(0o660)
        yield file


def test_settings(tmp_path: Path) -> None:
    paths = board(tmp_path)
    assert said(check_settings(paths, context_of(tmp_path)))[0] is Verdict.OK
    wrong = context_of(tmp_path, settings_problem="/etc/orin-rerank/config.toml:2: unknown key a in [server]")
    finding = check_settings(paths, wrong)
    assert said(finding) == (Verdict.FAIL, "/etc/orin-rerank/config.toml:2: unknown key a in [server]")
    assert finding.command == "orin-rerank config check"
    named = dataclasses.replace(wrong, settings_file=tmp_path / "mine.toml")
    assert check_settings(paths, named).command == f"orin-rerank config check {tmp_path}/mine.toml"


def test_a_socket_that_answers(tmp_path: Path, listening: Path) -> None:
    context = context_of(tmp_path, socket=listening)
    assert said(check_socket(board(tmp_path), context)) == (Verdict.OK, f"{listening}, mode 0660, group root")


def test_a_daemon_that_hangs(tmp_path: Path, listening: Path) -> None:
    answer = DaemonAnswer(detail="the daemon gave no answer in time")
    finding = check_state(board(tmp_path), context_of(tmp_path, socket=listening, daemon=answer))
    assert said(finding) == (Verdict.FAIL, "the daemon gave no answer in time")


def test_a_socket_that_is_not_for_the_caller(tmp_path: Path, listening: Path) -> None:
    context = context_of(tmp_path, socket=listening, caller=APP, group_name=lambda _: "orin-rerank")
    finding = check_socket(board(tmp_path), context)
    assert said(finding) == (Verdict.FAIL, f"app may not connect: not in the group orin-rerank of {listening}")
    assert finding is not None
    assert finding.command == "sudo usermod -aG orin-rerank app"


def test_no_daemon(tmp_path: Path) -> None:
    paths = board(tmp_path)
    context = context_of(tmp_path, socket=tmp_path / "s", daemon=DaemonAnswer(detail="no daemon answers there"))
    finding = check_socket(paths, context)
    assert said(finding) == (Verdict.WARN, f"{tmp_path}/s is not there: no daemon runs")
    assert finding is not None
    assert finding.command == "orin-rerank serve"
    assert check_state(paths, context) is None  # it would say the same again
    unit = paths.at("/lib/systemd/system/orin-rerank.service")
    unit.parent.mkdir(parents=True)
    unit.touch()
    finding = check_socket(paths, context)
    assert finding is not None
    assert (finding.verdict, finding.command) == (Verdict.FAIL, "systemctl status orin-rerank")
    over_tcp = dataclasses.replace(context, socket=None)
    assert check_socket(paths, over_tcp) is None
    assert said(check_state(paths, over_tcp)) == (Verdict.FAIL, "no daemon answers there")


def test_a_socket_that_a_dead_daemon_left(tmp_path: Path) -> None:
    file = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(file))
    verdict, text = said(check_socket(board(tmp_path), context_of(tmp_path, socket=file)))
    assert verdict is Verdict.WARN
    assert "nobody answers" in text
    file.unlink()
    file.touch()
    assert said(check_socket(board(tmp_path / "b"), context_of(tmp_path, socket=file)))[0] is Verdict.FAIL


@pytest.mark.parametrize(
    ("answer", "verdict", "text"),
    [
        (SERVING, Verdict.OK, "serving by tensorrt in int8-fp16"),
        (DaemonAnswer("starting", "loading the model"), Verdict.WARN, "starting: loading the model"),
        (DaemonAnswer("failed", "no bundle"), Verdict.FAIL, "failed: no bundle"),
        (
            dataclasses.replace(SERVING, version="0.0.9"),
            Verdict.WARN,
            "version 0.0.9 runs, 0.1.0 is installed",
        ),
        (
            dataclasses.replace(SERVING, engine="onnxruntime-cpu", precision="fp32", engine_reason="no GPU was found"),
            Verdict.WARN,
            "serving by onnxruntime-cpu in fp32: not on the GPU",
        ),
    ],
)
def test_what_the_daemon_says(tmp_path: Path, answer: DaemonAnswer, verdict: Verdict, text: str) -> None:
    assert said(check_state(board(tmp_path), context_of(tmp_path, daemon=answer))) == (verdict, text)


def test_what_became_of_preparing_the_machine(tmp_path: Path) -> None:
    paths, context = board(tmp_path), context_of(tmp_path, daemon=DaemonAnswer())
    assert check_preparation(paths, context) is None
    journal = Journal(context.state)
    journal.begin(Step.CALIBRATE, {"bundle": "a"})
    journal.end(Step.CALIBRATE, Outcome.DONE, "INT8 is installed")
    assert said(check_preparation(paths, context)) == (Verdict.OK, "done: calibrate")
    journal.begin(Step.BUILD_INT8, {"bundle": "a"})
    journal.end(Step.BUILD_INT8, Outcome.FAILED, "the compiler ran out of memory")
    finding = check_preparation(paths, context)
    assert said(finding) == (Verdict.WARN, "build-int8: the compiler ran out of memory")
    assert finding is not None
    assert finding.command == "orin-rerank prepare --again"
    journal.begin(Step.POWER_MODE, {})
    journal.end(Step.POWER_MODE, Outcome.FAILED, "takes a reboot")  # has a row of its own, which looks again
    assert said(check_preparation(paths, context)) == (Verdict.WARN, "build-int8: the compiler ran out of memory")
    journal.begin(Step.LOAD, {})
    journal.end(Step.LOAD, Outcome.FAILED, "no memory")  # of a daemon that was given up nobody else tells
    assert said(check_preparation(paths, context))[1].endswith("memory; load: no memory")
    # A daemon that runs knows better than what lies on the disk.
    assert said(check_preparation(paths, context_of(tmp_path)))[0] is Verdict.OK
    problems = ("calibrate: refused by the gate", "clocks: not locked", "the settings are wrong")
    told = context_of(tmp_path, daemon=dataclasses.replace(SERVING, problems=problems))
    assert said(check_preparation(paths, told)) == (Verdict.WARN, "calibrate: refused by the gate")
    finding = check_problems(paths, told)  # neither is mended by preparing the machine again
    assert said(finding) == (Verdict.WARN, "clocks: not locked; the settings are wrong")
    assert finding is not None
    assert finding.command == "orin-rerank status"
    assert check_problems(paths, context_of(tmp_path)) is None

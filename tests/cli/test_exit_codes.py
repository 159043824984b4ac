"""Every error has an exit code, and scripts can tell them apart."""

from __future__ import annotations

from fakes.errors import an_error, error_classes
from orin_rerank import errors
from orin_rerank.cli.exit_codes import ExitCode, exit_code_help, exit_code_of
from orin_rerank.errors import ErrorKind


def test_every_error_has_a_code_that_is_no_success() -> None:
    codes = {of: exit_code_of(an_error(of)) for of in error_classes()}
    assert set(codes) >= {errors.DatasetError, errors.ImageDecodeError, errors.SelfTestError}
    assert ExitCode.OK not in codes.values()


def test_kinds_do_not_share_a_code() -> None:
    by_kind = {of.kind: exit_code_of(an_error(of)) for of in error_classes() if of.__name__ in errors.__all__}
    assert set(by_kind) == set(ErrorKind)
    assert len(set(by_kind.values())) == len(ErrorKind)


def test_no_daemon_and_a_wrong_setting_are_told_from_their_kinds() -> None:
    assert exit_code_of(errors.UnreachableError("m")) == 68
    assert exit_code_of(errors.UnavailableError("m")) == 69
    assert exit_code_of(errors.SettingsError("m")) == 2
    assert exit_code_of(errors.InvalidRequestError("m")) == 65


def test_help_lists_every_code_an_error_can_have() -> None:
    listed = {int(line.split()[0]) for line in exit_code_help().splitlines()}
    assert listed >= {code.value for code in ExitCode if code is not ExitCode.BROKEN_PIPE}

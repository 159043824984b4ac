"""Every error of the tree has a status, and a client can read its details."""

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from fakes.errors import an_error, error_classes
from orin_rerank import errors
from orin_rerank.errors import ErrorKind, ImageDecodeError, OrinRerankError, OverloadedError
from orin_rerank.serving.status import ERROR_DOMAIN, code_of, to_status


def _details(status):
    ((key, value),) = status.trailing_metadata
    assert key == "grpc-status-details-bin"
    return status_pb2.Status.FromString(value)


@pytest.mark.parametrize("cls", list(error_classes()), ids=lambda cls: cls.__name__)
def test_every_error_has_a_status_with_its_code_and_item(cls):
    status = to_status(an_error(cls, "a message", "an.item"))
    rich = _details(status)
    info = error_details_pb2.ErrorInfo()
    assert rich.details[0].Unpack(info)
    assert rich.code == status.code.value[0]
    assert rich.message == status.details == "an.item: a message"
    assert (info.reason, info.domain, info.metadata["item"]) == (cls.code.upper(), ERROR_DOMAIN, "an.item")


def test_codes_are_unique_so_that_a_client_can_match_on_them():
    codes = [cls.code for cls in error_classes() if cls is not OrinRerankError]
    codes.remove(errors.InternalError.code)  # shares the root's
    assert len(codes) == len(set(codes))


def test_every_kind_has_a_code_and_none_is_unknown():
    for kind in ErrorKind:
        error = type("Some", (OrinRerankError,), {"kind": kind})("x")
        assert code_of(error) not in {grpc.StatusCode.UNKNOWN, grpc.StatusCode.OK}


def test_the_codes_of_the_protocol():
    assert code_of(ImageDecodeError("x")) is grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(errors.UnknownModelError("x")) is grpc.StatusCode.NOT_FOUND
    assert code_of(OverloadedError("x", retry_after_s=1)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert code_of(errors.UnavailableError("x")) is grpc.StatusCode.UNAVAILABLE
    assert code_of(errors.DeadlineError("x")) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert code_of(errors.NonFiniteScoreError("x")) is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(("seconds", "milliseconds"), [(1.5, 1500), (0.0, 1), (60.0, 60_000)])
def test_overload_says_when_to_try_again(seconds, milliseconds):
    rich = _details(to_status(OverloadedError("full", retry_after_s=seconds)))
    info = error_details_pb2.RetryInfo()
    assert rich.details[1].Unpack(info)
    assert info.retry_delay.ToMilliseconds() == milliseconds


def test_every_overload_has_a_retry_hint():
    rich = _details(to_status(errors.PoolExhaustedError("no buffer")))
    info = error_details_pb2.RetryInfo()
    assert rich.details[1].Unpack(info)
    assert info.retry_delay.ToMilliseconds() == 1000


def test_other_errors_give_no_retry_hint():
    assert len(_details(to_status(errors.UnavailableError("x"))).details) == 1

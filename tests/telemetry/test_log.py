"""The journal's two forms, and that contents do not slip into it."""

import io
import json
import logging

import pytest

from orin_rerank.errors import BundleError
from orin_rerank.telemetry import log


@pytest.fixture(autouse=True)
def _restore_logging():
    root, own = logging.getLogger(), logging.getLogger("orin_rerank")
    before = (root.handlers[:], root.level, own.level)
    yield
    root.handlers[:], root.level, own.level = before


def _journal(*, as_json: bool, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    log.configure(level, stream=stream, as_json=as_json)
    return stream


def test_text_form_shows_values_and_quotes_odd_ones():
    stream = _journal(as_json=False)
    logging.getLogger("orin_rerank.serving").info(
        "model loaded", extra=log.fields(name="mini", seconds=2.12345, path="a b", none=None)
    )
    line = stream.getvalue()
    assert line.endswith('INFO serving: model loaded name=mini seconds=2.123 path="a b"\n')


def test_json_form_is_one_object_a_line():
    stream = _journal(as_json=True)
    logging.getLogger("orin_rerank.serving").warning("two\nlines", extra=log.fields(documents=3))
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert record["level"] == "warning"
    assert record["logger"] == "serving"
    assert record["message"] == "two\nlines"
    assert record["documents"] == 3


def test_json_is_the_form_off_a_terminal():
    stream = io.StringIO()
    log.configure(stream=stream)
    logging.getLogger("orin_rerank").info("started")
    assert json.loads(stream.getvalue())["message"] == "started"


def test_values_cannot_overwrite_the_record():
    stream = _journal(as_json=True)
    logging.getLogger("orin_rerank").info("started", extra=log.fields(level="nonsense", message="nonsense"))
    record = json.loads(stream.getvalue())
    assert (record["level"], record["message"]) == ("info", "started")


@pytest.mark.parametrize("as_json", [True, False])
def test_foreign_exceptions_show_frames_and_types_but_no_text(as_json):
    stream = _journal(as_json=as_json)
    try:
        try:
            {}["somebody's document"]
        except KeyError as error:
            raise BundleError("a digest differs", item="model.onnx") from error
    except BundleError:
        logging.getLogger("orin_rerank").exception("load failed")
    text = stream.getvalue()
    assert "somebody" not in text
    assert "KeyError" in text
    assert "model.onnx: a digest differs" in text
    assert "test_foreign_exceptions" in text


def test_level_applies_to_our_records_and_libraries_speak_from_warning_on():
    stream = _journal(as_json=False, level="debug")
    logging.getLogger("orin_rerank.x").debug("ours")
    logging.getLogger("grpc").info("theirs")
    logging.getLogger("grpc").warning("their warning")
    assert "ours" in stream.getvalue()
    assert "theirs" not in stream.getvalue()
    assert "their warning" in stream.getvalue()

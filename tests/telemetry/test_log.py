"""The journal's two forms, and that contents do not slip into it."""

import asyncio
import gc
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


class _Journal:
    """What systemd's journal was sent."""

    def __init__(self):
        self.entries = []

    def send(self, MESSAGE, **fields):  # noqa: N803
        self.entries.append({"MESSAGE": MESSAGE, **fields})


def _journal_logger():
    journal = _Journal()
    logger = logging.getLogger("orin_rerank.journal_test")
    logger.handlers[:] = [log.JournalHandler(journal.send)]
    logger.propagate = False
    logger.setLevel(logging.INFO)
    return journal, logger


def test_the_journal_gets_values_as_fields_of_their_own():
    journal, logger = _journal_logger()
    logger.warning("model loaded", extra=log.fields(name="mini", seconds=2.5, none=None, priority="not syslog's"))
    (entry,) = journal.entries
    assert entry["MESSAGE"] == 'journal_test: model loaded name=mini seconds=2.5 priority="not syslog\'s"'
    assert entry["PRIORITY"] == "4"
    assert entry["ORIN_RERANK_NAME"] == "mini"
    assert entry["ORIN_RERANK_SECONDS"] == "2.5"
    assert entry["ORIN_RERANK_PRIORITY"] == "not syslog's"
    assert "ORIN_RERANK_NONE" not in entry
    assert entry["CODE_FUNC"] == "test_the_journal_gets_values_as_fields_of_their_own"


def test_the_journal_gets_no_text_of_foreign_exceptions():
    journal, logger = _journal_logger()
    try:
        {}["somebody's document"]
    except KeyError:
        logger.exception("failed")
    (entry,) = journal.entries
    assert "KeyError" in entry["MESSAGE"]
    assert entry["PRIORITY"] == "3"
    assert "document" not in repr(entry)


def test_a_stream_that_is_not_the_journals_gets_lines(monkeypatch):
    # As in a service whose standard error was sent elsewhere: the variable is there, and names another file.
    monkeypatch.setenv("JOURNAL_STREAM", "1:1")
    log.configure()
    assert not isinstance(logging.getLogger().handlers[0], log.JournalHandler)


@pytest.mark.parametrize("as_json", [True, False])
def test_asyncio_s_records_do_not_quote_exceptions(as_json):
    stream = _journal(as_json=as_json)

    async def whole():
        async def fails():
            raise KeyError("somebody's document")

        task = asyncio.ensure_future(fails())
        await asyncio.wait([task])
        del task
        gc.collect()

    asyncio.run(whole())
    assert "Task exception was never retrieved" in stream.getvalue()
    assert "KeyError" in stream.getvalue()
    assert "somebody" not in stream.getvalue()

"""Between the wire and the prompt path."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orin_rerank.errors import (
    EmptyDocumentError,
    EmptyQueryError,
    ImageFormatError,
    InvalidRequestError,
    NoDocumentsError,
    TooManyDocumentsError,
)
from orin_rerank.prompt.content import ImagePart, TextPart
from orin_rerank.serving.convert import Asked, sigmoid, to_input, to_response, wire_item
from orin_rerank.serving.job import Scored
from orin_rerank.v1 import rerank_pb2 as pb

TEXT = pb.Content(text="text")


def _request(**rest):
    return pb.RerankRequest(**{"query": TEXT, "documents": [TEXT, TEXT, TEXT]} | rest)


def _scored(margins, truncated=None):
    count = len(margins)
    return Scored(
        margins=np.asarray(margins, dtype=np.float32),
        tokens=list(range(1, count + 1)),
        truncated_tokens=truncated or [0] * count,
        query_tokens=4,
        query_truncated_tokens=1,
        images=3,
        images_cached=2,
    )


def test_both_forms_of_content():
    request = _request(
        query=pb.Content(text="words", image=b"picture"),
        documents=[
            pb.Content(image=b"picture"),
            pb.Content(parts=[pb.Part(text="a"), pb.Part(image=b"b"), pb.Part(text="")]),
        ],
    )
    converted = to_input(request, max_documents=10)
    assert converted.query == (ImagePart(b"picture"), TextPart("words"))
    assert converted.documents == [(ImagePart(b"picture"),), (TextPart("a"), ImagePart(b"b"), TextPart(""))]


def test_limits_instruction_and_truncation():
    plain = to_input(_request(), max_documents=10)
    assert plain.instruction is None
    assert (plain.limits.query_tokens, plain.limits.document_tokens, plain.limits.truncate) == (None, None, True)
    request = _request(instruction="Find it.", max_query_tokens=3, max_document_tokens=5, truncation=pb.TRUNCATION_NONE)
    converted = to_input(request, max_documents=10)
    assert converted.instruction == "Find it."
    assert (converted.limits.query_tokens, converted.limits.document_tokens) == (3, 5)
    assert not converted.limits.truncate


@pytest.mark.parametrize(
    ("change", "error", "item"),
    [
        ({"query": pb.Content()}, EmptyQueryError, "query"),
        ({"query": pb.Content(parts=[pb.Part(text="")])}, EmptyQueryError, "query"),
        ({"documents": []}, NoDocumentsError, "documents"),
        ({"documents": [TEXT] * 11}, TooManyDocumentsError, "documents"),
        ({"documents": [TEXT, pb.Content()]}, EmptyDocumentError, "documents[1]"),
        ({"documents": [TEXT, pb.Content(text="a", parts=[pb.Part(text="b")])]}, InvalidRequestError, "documents[1]"),
        ({"query": pb.Content(image=b"a", parts=[pb.Part(text="b")])}, InvalidRequestError, "query"),
        (
            {"documents": [pb.Content(parts=[pb.Part(text="a"), pb.Part()])]},
            InvalidRequestError,
            "documents[0].parts[1]",
        ),
        ({"query": pb.Content(parts=[pb.Part(image=b"")])}, ImageFormatError, "query.parts[0].image"),
        ({"top_n": 0}, InvalidRequestError, "top_n"),
        ({"max_query_tokens": 0}, InvalidRequestError, "max_query_tokens"),
        ({"max_document_tokens": 0}, InvalidRequestError, "max_document_tokens"),
        ({"truncation": 7}, InvalidRequestError, "truncation"),
    ],
)
def test_wrong_requests_are_refused_by_name(change, error, item):
    with pytest.raises(error) as caught:
        to_input(_request(**change), max_documents=10)
    assert caught.value.item == item


def test_an_empty_instruction_means_the_default():
    assert to_input(_request(instruction=""), max_documents=10).instruction is None


_parts = st.one_of(
    st.builds(pb.Part, text=st.text(max_size=8)), st.builds(pb.Part, image=st.binary(max_size=8)), st.just(pb.Part())
)
_contents = st.builds(
    pb.Content, text=st.text(max_size=8), image=st.binary(max_size=8), parts=st.lists(_parts, max_size=3)
)


@given(
    st.builds(
        pb.RerankRequest,
        query=_contents,
        documents=st.lists(_contents, max_size=4),
        instruction=st.none() | st.text(max_size=8),
        top_n=st.none() | st.integers(0, 2**32 - 1),
        max_query_tokens=st.none() | st.integers(0, 2**32 - 1),
        max_document_tokens=st.none() | st.integers(0, 2**32 - 1),
        truncation=st.integers(-5, 5),
    )
)
def test_whatever_parses_is_converted_whole_or_refused_with_an_item(request):
    try:
        converted = to_input(request, max_documents=3)
        refusal = None
    except InvalidRequestError as error:
        refusal = error
    if refusal is not None:
        assert refusal.item
        return
    assert len(converted.documents) == len(request.documents)
    for message, content in zip(
        [request.query, *request.documents], [converted.query, *converted.documents], strict=True
    ):
        assert any(isinstance(part, ImagePart) or part.text for part in content)
        text = message.text or "".join(part.text for part in message.parts)
        image = message.image or b"".join(part.image for part in message.parts)
        assert "".join(part.text for part in content if isinstance(part, TextPart)) == text
        assert b"".join(part.data for part in content if isinstance(part, ImagePart)) == image


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("documents[0].content[0]", "documents[0].image"),
        ("documents[0].content[1]", "documents[0].text"),
        ("documents[1].content[0]", "documents[1].text"),
        ("documents[2].content[1]", "documents[2].parts[1]"),
        ("query.content[0]", "query.image"),
        ("query.content[0].frame", "query.image.frame"),
        ("documents[1]", "documents[1]"),
        ("query", "query"),
        (None, None),
    ],
)
def test_items_are_named_as_the_caller_wrote_them(item, expected):
    request = _request(
        query=pb.Content(image=b"x"),
        documents=[
            pb.Content(text="a", image=b"b"),
            TEXT,
            pb.Content(parts=[pb.Part(text="a"), pb.Part(image=b"b")]),
        ],
    )
    assert wire_item(item, Asked.by(request), to_input(request, max_documents=9)) == expected


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20), st.none() | st.integers(1, 30))
def test_results_are_best_first_and_equal_ones_keep_their_order(margins, top_n):
    request = _request(documents=[TEXT] * len(margins), top_n=top_n)
    response = to_response(Asked.by(request), _scored(margins), model="m", precision="fp32")
    got = [(result.index, result.margin) for result in response.results]
    assert got == sorted(enumerate(margins), key=lambda pair: (-pair[1], pair[0]))[:top_n]
    for result in response.results:
        assert 0 <= result.score <= 1
        assert result.tokens == result.index + 1


@pytest.mark.parametrize("margin", [-1000.0, -88.0, -1.5, 0.0, 1e-6, 3.25, 17.0, 1000.0])
def test_sigmoid_is_exact_and_does_not_overflow(margin):
    (score,) = sigmoid(np.asarray([margin], dtype=np.float32))
    wide = float(np.float32(margin))
    exact = 1 / (1 + math.exp(-wide)) if wide > -700 else 0.0
    assert score == pytest.approx(exact, rel=1e-14, abs=1e-300)


def test_documents_come_back_on_request_with_truncation_told():
    documents = [pb.Content(text="a"), pb.Content(image=b"b")]
    request = _request(documents=documents, return_documents=True)
    response = to_response(Asked.by(request), _scored([1.0, 2.0], truncated=[0, 5]), model="m", precision="int8")
    assert [result.document for result in response.results] == [documents[1], documents[0]]
    assert [(result.truncated, result.truncated_tokens) for result in response.results] == [(True, 5), (False, 0)]
    assert (response.model, response.precision) == ("m", "int8")
    usage = response.usage
    assert (usage.query_tokens, usage.query_truncated_tokens, usage.document_tokens) == (4, 1, 3)
    assert (usage.images, usage.images_cached) == (3, 2)


def test_documents_do_not_come_back_unasked():
    response = to_response(Asked.by(_request()), _scored([1.0, 2.0, 3.0]), model="m", precision="fp32")
    assert not any(result.HasField("document") for result in response.results)

"""Requests in pieces."""

import pytest

from fakes.model import FakeEncoder
from orin_rerank.errors import InternalError, InvalidRequestError
from orin_rerank.prompt.content import ImagePart, Limits, RerankInput, TextPart
from orin_rerank.prompt.encoded import EncodedRequest
from orin_rerank.prompt.profile import ImageProfile, PromptFamily, PromptProfile
from orin_rerank.serving.encoding import PiecewiseEncoder

IMAGES = ImageProfile(
    patch_size=16,
    temporal_patch_size=2,
    merge_size=2,
    position_grid=48,
    head_dim=64,
    rope_theta=10000.0,
    min_pixels=1024,
    max_pixels=1024 * 100,
)


def _profile(*, images=False, max_tokens=4096):
    return PromptProfile(PromptFamily.VL, max_tokens, "default", IMAGES if images else None)


def _request(documents, query="query"):
    return RerankInput((TextPart(query),), tuple(documents), limits=Limits(document_tokens=10**6))


def _pieces(request, *, profile=None, encoder=None):
    pieces = PiecewiseEncoder(encoder or FakeEncoder(), profile or _profile(), request)
    encoded = []
    while not pieces.done:
        encoded.append(pieces.next_piece())
    return encoded


def _texts(count, length=8):
    return [(TextPart(f"{i:0{length}}"),) for i in range(count)]


def _sizes(request, **kwargs):
    return [len(piece.documents) for piece in _pieces(request, **kwargs)]


def test_a_small_request_is_one_piece():
    assert _sizes(_request(_texts(32))) == [32]


def test_pieces_are_the_whole_request_behind_one_prefix_object():
    request = _request(_texts(100))
    pieces = _pieces(request)
    whole = FakeEncoder().encode(request)
    assert [len(piece.documents) for piece in pieces] == [32, 32, 32, 4]
    assert len({id(piece.prefix) for piece in pieces}) == 1
    assert pieces[0].prefix.ids.tolist() == whole.prefix.ids.tolist()
    got = [document.ids.tolist() for piece in pieces for document in piece.documents]
    assert got == [document.ids.tolist() for document in whole.documents]


def test_long_texts_and_images_make_smaller_pieces():
    assert _sizes(_request(_texts(6, length=100_000))) == [2, 2, 2]
    assert _sizes(_request(_texts(3, length=1_000_000))) == [1, 1, 1]
    images = [(ImagePart(b"x"),)] * 20
    assert _sizes(_request(images), profile=_profile(images=True)) == [8, 8, 4]


def test_documents_of_many_images_are_encoded_as_a_whole():
    images = [(ImagePart(b"x"),) * 11] * 20  # 11 times 102 tokens are more than a quarter of the window
    assert _sizes(_request(images), profile=_profile(images=True)) == [20]


def test_a_long_query_is_encoded_as_a_whole():
    encoder = FakeEncoder()
    assert _sizes(_request(_texts(100), query="q" * 2000), encoder=encoder) == [100]
    assert encoder.encoded_documents == 32 + 100


def test_an_offending_document_is_named_by_its_place_in_the_whole_request():
    documents = _texts(100)
    documents[70] = (TextPart("  "),)
    with pytest.raises(InvalidRequestError) as caught:
        _pieces(_request(documents))
    assert caught.value.item == "documents[70]"


def test_other_items_are_left_as_they_are():
    with pytest.raises(InvalidRequestError) as caught:
        _pieces(_request(_texts(100), query=" "))
    assert caught.value.item == "query"


def test_pieces_behind_different_prefixes_are_never_mixed():
    class Fickle(FakeEncoder):
        def encode(self, request, query_images=None):
            encoded = super().encode(request, query_images)
            first = request.documents[0] == (TextPart("0" * 8),)
            return encoded if first else EncodedRequest(encoded.documents[0], encoded.documents)

    with pytest.raises(InternalError, match="prefixes"):
        _pieces(_request(_texts(100)), encoder=Fickle())

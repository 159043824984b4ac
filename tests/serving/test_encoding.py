"""Requests in pieces."""

import pytest

from fakes.model import FakeEncoder
from orin_rerank.errors import InternalError, InvalidRequestError, TooLongError
from orin_rerank.prompt.content import ImagePart, Limits, RerankInput, TextPart
from orin_rerank.prompt.encoded import EncodedRequest
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.profile import ImageProfile, PromptFamily, PromptProfile
from orin_rerank.prompt.resize import most_picture_bytes
from orin_rerank.prompt.tokenizer import PromptTokenizer
from orin_rerank.serving.encoding import PiecewiseEncoder
from prompt.pictures import picture
from prompt.reference import TOKENIZER_PATH

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
    assert _sizes(_request(images), profile=_profile(images=True)) == [2] * 10


def test_a_piece_says_what_its_pictures_take_at_most():
    largest = most_picture_bytes(IMAGES)
    documents = [*[(ImagePart(b"x"),)] * 3, (TextPart("text"),)]
    request = RerankInput((ImagePart(b"q"), TextPart("query")), tuple(documents))
    pieces = PiecewiseEncoder(FakeEncoder(), _profile(images=True), request)
    assert pieces.picture_bytes == 3 * largest, "two documents and the query"
    pieces.next_piece()
    assert pieces.picture_bytes == largest, "the query's picture is there already"
    pieces.next_piece()
    assert (pieces.done, pieces.picture_bytes) == (True, 0)
    assert PiecewiseEncoder(FakeEncoder(), _profile(), request).picture_bytes == 0


def test_a_document_of_thousands_of_pictures_takes_no_more_than_the_window_and_one():
    request = _request([(ImagePart(b"x"),) * 5000])
    pieces = PiecewiseEncoder(FakeEncoder(), _profile(images=True), request)
    assert pieces.picture_bytes == 4096 * 1024 * 3 + most_picture_bytes(IMAGES)


class TestLongQueries:
    """The pieces come to what the request as a whole does, with a real tokenizer and real truncation."""

    PROFILE = _profile(images=True, max_tokens=800)
    ENCODER = PromptEncoder(PROFILE, PromptTokenizer.from_file(TOKENIZER_PATH))

    def both(self, query, documents, **limits):
        request = RerankInput(query, documents, limits=Limits(**limits))
        pieces = PiecewiseEncoder(self.ENCODER, self.PROFILE, request)
        encoded = []
        learnt = 0
        while not pieces.done:
            piece = pieces.next_piece()
            learnt += piece is None
            encoded += [] if piece is None else [piece]
        whole = self.ENCODER.encode(request)
        assert {id(piece.prefix) for piece in encoded} == {id(encoded[0].prefix)}
        parts = [(encoded[0].prefix, whole.prefix)]
        parts += zip([one for piece in encoded for one in piece.documents], whole.documents, strict=True)
        for ours, expected in parts:
            assert ours.digest == expected.digest
            assert ours.content_tokens == expected.content_tokens
            assert ours.truncated_tokens == expected.truncated_tokens
        return learnt, len(encoded), encoded[0].prefix.truncated_tokens

    @pytest.mark.parametrize("place", [0, 50, 99])
    def test_one_document_that_leaves_it_little_cuts_it_for_all(self, place):
        documents = [(TextPart("short"),) for _ in range(100)]
        documents[place] = (TextPart("word " * 400),)
        learnt, pieces, cut = self.both((TextPart("query " * 640),), documents)
        assert (learnt, pieces) == (4, 4)
        assert cut > 0

    def test_pictures_do_too(self):
        documents = [(TextPart("short"),) for _ in range(9)]
        documents[7] = (ImagePart(picture(height=400, width=400)), TextPart("and text"))
        learnt, _, cut = self.both((TextPart("query " * 660),), documents * 8)
        assert learnt > 1
        assert cut > 0

    def test_a_query_with_pictures_keeps_them(self):
        query = (ImagePart(picture(height=300, width=320)), TextPart("query " * 540))
        learnt, _, cut = self.both(query, [(TextPart("word " * 500),) for _ in range(40)])
        assert learnt == 2
        assert cut > 0

    def test_nothing_is_kept_of_a_piece_that_was_encoded_to_learn(self):
        query = (ImagePart(picture(height=300, width=320)), TextPart("query " * 540))
        pieces = PiecewiseEncoder(self.ENCODER, self.PROFILE, RerankInput(query, [(TextPart("word " * 500),)] * 40))
        first = pieces.picture_bytes
        assert pieces.next_piece() is None
        assert pieces.picture_bytes == first > 0, "the query's picture is to be decoded again, and counted"
        assert not pieces._query_images

    def test_what_the_caller_allows_is_not_learnt(self):
        learnt, pieces, cut = self.both((TextPart("query " * 450),), [(TextPart("word " * 500),)] * 40, query_tokens=50)
        assert (learnt, pieces) == (0, 2)
        assert cut > 0

    @pytest.mark.parametrize("words", [300, 470])
    def test_a_query_that_is_never_cut_is_not_learnt(self, words):
        learnt, pieces, cut = self.both((TextPart("query " * words),), [(TextPart("word " * 500),)] * 40)
        assert (learnt, pieces, cut) == (0, 2, 0)

    def test_many_small_pictures_are(self):
        """Who knows only their number must take them for large ones."""
        small = [(ImagePart(picture(height=32, width=32)),) * 5] * 4
        learnt, pieces, cut = self.both((TextPart("query"),), small)
        assert (learnt, pieces, cut) == (4, 4, 0)

    def test_what_does_not_fit_is_refused_by_its_place(self):
        documents = [(TextPart("short"),) for _ in range(70)]
        documents[60] = (ImagePart(picture(height=400, width=400)),) * 8
        pieces = PiecewiseEncoder(self.ENCODER, self.PROFILE, RerankInput((TextPart("query " * 400),), documents))
        for _ in range(2):
            pieces.next_piece()
        with pytest.raises(TooLongError) as caught:
            pieces.next_piece()
        assert caught.value.item == "documents[60]"


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

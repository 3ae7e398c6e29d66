"""The picture of the cache: what was put in stands in it, in a size that is bounded."""

from __future__ import annotations

import pickle
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.runtime.cache import GrowableIntArray, PagePool, PrefixCache, common_prefix
from sgl.runtime.cache.view.cache_snapshot import CacheSnapshot, snapshot
from sgl.runtime.cache.view.cache_tree import CacheTree
from sgl.runtime.cache.view.cache_tree_nodes import CacheNode
from sgl.runtime.cache.view.cache_tree_outline import columns, shortened
from sgl.runtime.cache.view.cache_tree_svg import ROWS
from sgl.runtime.errors import ConfigError


class Row:
    """A sequence as the cache sees it."""

    def __init__(self, namespace: str) -> None:
        self.tokens, self.slots, self.computed, self.node = GrowableIntArray(), GrowableIntArray(), 0, None
        self.namespace = namespace

    def holder(self, number: int) -> tuple:
        return self.node, self.namespace, number, "running", self.tokens.array[: self.computed]


def ids(text: str) -> np.ndarray:
    return np.array([ord(sign) for sign in text], np.int32)


def decode(tokens: np.ndarray) -> str:
    return "".join(map(chr, tokens.tolist()))


def compute(cache: PrefixCache, text: str, namespace: str = "", later: str = "") -> Row:
    """A sequence that has published `text` and computed `later` behind it."""
    row = Row(namespace)
    row.tokens.extend(ids(text))
    cache.attach(row, len(text))
    for part in ("", later):
        row.tokens.extend(ids(part))
        assert cache.grow(row, len(row.tokens))
        row.computed = len(row.tokens)
        if not part:
            cache.publish(row)
    return row


def keep(cache: PrefixCache, *texts: str, namespace: str = "") -> None:
    for text in texts:
        cache.release(compute(cache, text, namespace))


def look(cache: PrefixCache, *rows: Row) -> CacheTree:
    return CacheTree.of(snapshot(cache, [row.holder(i) for i, row in enumerate(rows)]), decode)


def shape(node: CacheNode) -> dict:
    return {child.text: shape(child) for child in node.children}


def radix(texts: list[str]) -> dict:
    """The oracle: the radix tree of texts, by first signs and common beginnings."""
    tree: dict = {}
    for text in sorted(set(filter(None, texts))):
        _put(tree, text)
    return tree


def _put(tree: dict, text: str) -> None:
    for known in list(tree):
        same = common_prefix(ids(known), ids(text))
        if same:
            below = tree.pop(known)
            if same < len(known):
                below = {known[same:]: below}
            tree[known[:same]] = below
            if same < len(text):
                _put(below, text[same:])
            return
    tree[text] = {}


texts = st.lists(st.text("ab", max_size=6), max_size=12)


@settings(max_examples=80, deadline=None)
@given(
    texts,
    st.lists(
        st.tuples(st.text("ab", min_size=1, max_size=6), st.sampled_from(["", "n"]), st.text("xy", max_size=3)),
        max_size=4,
    ),
)
def test_the_tree_shows_what_was_put_in_and_who_stands_where(finished, running):
    cache = PrefixCache(PagePool(400))
    keep(cache, *finished)
    rows = [compute(cache, text, namespace, later) for text, namespace, later in running]
    tree = look(cache, *rows)
    expected = radix([*finished, *(text for text, namespace, _ in running if not namespace)])
    assert (shape(tree.roots[""]) if "" in tree.roots else {}) == expected
    stands = {row.sequence: (node.path_text(), row.text) for node in _all(tree) for row in node.rows}
    assert stands == {i: (text, later) for i, (text, _, later) in enumerate(running)}
    for node in tree.nodes():
        below = [row for each in node.nodes() for row in each.rows]
        assert node.locks == len(below) and node.start == len(node.path_text()) - len(node)
    cache.check([cache.pages(row) for row in rows])
    assert str(tree).count("\n") == len(list(tree.nodes())) + len(rows) + sum(bool(name) for name in tree.roots)


def _all(tree: CacheTree) -> list[CacheNode]:
    return [node for root in tree.roots.values() for node in root.nodes()]


@given(texts)
def test_a_snapshot_travels(finished):
    cache = PrefixCache(PagePool(400))
    keep(cache, *finished)
    taken = snapshot(cache, [])
    again = pickle.loads(pickle.dumps(taken))
    assert isinstance(again, CacheSnapshot) and str(CacheTree.of(again, decode)) == str(CacheTree.of(taken, decode))


def test_what_is_taken_does_not_change_and_cannot_be_changed():
    cache = PrefixCache(PagePool(400))
    keep(cache, "abcd")
    before = look(cache)
    keep(cache, "abxy")
    cache.flush()
    assert shape(before.roots[""]) == {"abcd": {}} and not list(look(cache).nodes())
    with pytest.raises(ValueError, match="read-only"):
        next(before.nodes()).tokens[0] = 1


def test_the_leaf_that_is_evicted_first_is_named():
    cache = PrefixCache(PagePool(400))
    held = compute(cache, "first")
    keep(cache, "second", "third")
    assert look(cache, held).next_evicted.text == "second"
    cache.tree.evict(6)
    assert look(cache, held).next_evicted.text == "third" and "evicted first" in str(look(cache, held))
    cache.tree.evict(5)
    assert look(cache, held).next_evicted is None and cache.tree.evicted == 11


def test_text_form():
    cache = PrefixCache(PagePool(400))
    running = compute(cache, "say a\n", later="{}")
    keep(cache, "say b", namespace="")
    other = compute(cache, "x", "mine")
    assert str(look(cache, running, other)) == "\n".join(
        [
            "8 tokens in 4 nodes, 7 of them locked; 389 of 399 places free",
            '└─ 4 "say "  locked by 1',
            '   ├─ 2 "a↵"  locked by 1',
            '   │  └─ · sequence 0 running: 2 tokens not in the tree "{}"',
            '   └─ 1 "b"  evicted first',
            "namespace 'mine'",
            '└─ 1 "x"  locked by 1',
            "   └─ · sequence 1 running",
        ]
    )


@pytest.mark.parametrize("width", [400, 700, 1000])
def test_a_picture_has_room_for_any_tree(width):
    cache = PrefixCache(PagePool(9000))
    keep(cache, *["".join(letters) for letters in np.random.default_rng(0).choice(list("abc "), (120, 20))])
    keep(cache, *["turn " * i for i in range(1, 60)])  # a chain
    keep(cache, '<b> & "quotes" \0 日本語', *["wide" + chr(i) * 30 for i in range(50, 120)])
    picture = ElementTree.fromstring(look(cache).svg(width))
    inside = [part for part in picture.iter() if part.tag.endswith("rect") and "x" in part.attrib]
    assert max(float(r.get("x")) + float(r.get("width")) for r in inside) <= float(picture.get("width")) <= width
    assert float(picture.get("height")) < 2200
    shown = [int(text[2:].replace(",", "")) for text in picture.itertext() if re.match(r"\+ \d", text)]
    tokens = [part for part in inside if part.get("class") != "more"]
    boxes = len(tokens) - 1 + sum(shown) // 2  # a title and a text of each; the root is no node
    assert boxes == len(list(look(cache).nodes())), "every node is drawn or counted"


def test_an_empty_cache_has_a_picture(tmp_path):
    tree = look(PrefixCache(PagePool(10)))
    tree.save(tmp_path / "cache.svg")
    assert "0 tokens in 0 nodes" in (tmp_path / "cache.svg").read_text() and tree._repr_svg_() == tree.svg()
    assert tree.next_evicted is None and tree.tokens == 0


@given(st.text(max_size=40), st.integers(2, 20))
def test_a_text_is_shortened_to_its_columns_on_one_line(text, most):
    short = shortened(text, most)
    assert columns(short) <= most and "\n" not in short
    if columns(text) <= most and text.strip() and text.isprintable():
        assert short == text


def test_a_chain_longer_than_the_recursion_limit_is_no_error():
    cache = PrefixCache(PagePool(1200))
    row = Row("")
    for i in range(1100):
        row.tokens.append(i)
        cache.grow(row, i + 1)
        row.computed = i + 1
        cache.publish(row)
    tree = CacheTree.of(snapshot(cache, []), str)
    assert len(list(tree.nodes())) == 1100 and len(str(tree).splitlines()) == 1101
    assert "1100 nodes" in str(tree).splitlines()[0].replace(",", "") and tree.svg()


@pytest.mark.parametrize("namespaces", [5, 200])
def test_many_namespaces_leave_a_picture_its_size(namespaces):
    cache = PrefixCache(PagePool(400 + 2 * namespaces))
    for i in range(namespaces):
        keep(cache, "ab", namespace=f"n{i}")
    drawn = ElementTree.fromstring(look(cache).svg())
    lines = {box.get("y") for box in drawn.iter() if box.tag.endswith("rect") and box.get("y")}
    assert len(lines) == min(namespaces, ROWS)
    assert ("+ 165" in list(drawn.itertext())) == (namespaces == 200), "those without room are counted"


@pytest.mark.parametrize("width", [0, 199, 20_001, True, 500.0, "wide"])
def test_a_width_that_no_picture_has_is_refused(width):
    with pytest.raises(ConfigError, match="give a whole number of pixels from 200 to 20000"):
        look(PrefixCache(PagePool(10))).svg(width)

"""The notebook view of a saturated e-graph."""

import copy
import pickle
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tensor_graphs as tg
from tensor_graphs.errors import UsageError
from tensor_graphs.explorer.explorer import Explorer
from tensor_graphs.explorer.static_pages import PER_PAGE


class Tags(HTMLParser):
    """Collects ids, links and classes, and checks that tags close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        found = dict(attrs)
        self.ids += [found["id"]] if found.get("id") else []
        self.links += [found["href"]] if found.get("href") else []
        if tag not in ("br", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    assert not tags.open
    return tags


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Explorer:
    x, w, v = tg.input("<b>x", (64, 128)), tg.param("w", (128, 128)), tg.param("v", (128, 128))
    y = tg.softmax(tg.silu(x @ w) * (x @ v))
    with tg.settings.override(home=str(tmp_path_factory.mktemp("home"))):
        return tg.saturate(tg.Graph.of(y, name="<script>gate"), backend="numpy")


def test_the_page_is_plain_and_its_links_lead_to_classes(explorer: Explorer) -> None:
    html = explorer._repr_html_()
    tags = parsed(html)
    assert not {"script", "link", "img", "iframe", "b>x"} & tags.tags
    assert "http" not in html and "&lt;b&gt;x" in html and "<script>gate" not in html
    assert len(tags.ids) == len(set(tags.ids)) == len(explorer.order)
    assert tags.links and {link.removeprefix("#") for link in tags.links} <= set(tags.ids)


def test_every_chosen_kernel_is_marked_and_listed_in_running_order(explorer: Explorer) -> None:
    html = explorer._repr_html_()
    listed, _, classes = html.partition("Classes: equal terms")
    names = [explorer.choice.hypergraph.candidates[i].template.name for i in explorer.choice.chosen]
    found = re.findall(r'<span class="name">([\w.]+)</span>', listed)
    assert found == names
    made = {explorer.choice.hypergraph.candidates[i].output.cls for i in explorer.choice.chosen}
    marked = re.findall(r'<div class="line chosen"><span class="cost">', classes)
    assert len(marked) == len(names)
    assert all(explorer._marked(c) for c in made)  # the e-node that the kernel computes, too


def test_pages_cover_all_classes_once(explorer: Explorer) -> None:
    found = [i for n in range(explorer.pages) for i in parsed(explorer.page(n)).ids]
    assert len(found) == len(set(found)) == len(explorer.order) and explorer.pages == -(-len(found) // PER_PAGE)
    assert sorted(explorer.order) == [c for c in range(explorer.view.n_classes) if len(explorer.view.nodes_of(c))]


def test_show_gives_a_class_with_its_neighbours(explorer: Explorer) -> None:
    root = explorer.view.roots[0]
    shown = parsed(explorer.show(root)).ids
    reads = {int(k) for n in explorer.view.nodes_of(root) for k in explorer.view.children(n)}
    assert {int(i.rpartition("-")[2]) for i in shown} >= {root} | reads


def test_main_objects_have_rich_forms(explorer: Explorer) -> None:
    for thing in (explorer.graph, explorer.view, explorer.plan(), tg.extract(explorer), explorer):
        assert len(repr(thing)) < 5000
        parsed(thing._repr_html_())
    assert re.match("e-graph of .* best .*; rewriting (saturated|stopped at)", repr(explorer))
    assert "<HTML" in repr(explorer.page(0))


def test_what_holds_kernels_is_not_pickled_and_says_so(explorer: Explorer) -> None:
    """It failed at whichever lambda came first, with AttributeError or PicklingError. E-graphs are data."""
    for kept in (explorer, explorer.choice, explorer.plan(), explorer.what_if()):
        with pytest.raises(UsageError, match="cannot be pickled"):
            pickle.dumps(kept)
    with pytest.raises(UsageError, match=r"an Explorer cannot be .*\n.*to_json"):
        copy.deepcopy(explorer)
    assert copy.copy(explorer).plan().cost == explorer.plan().cost
    assert len(pickle.loads(pickle.dumps(explorer.view))) == len(explorer.view)
    assert len(pickle.loads(pickle.dumps(explorer.explain()))) == 1


def test_extract_is_a_function_and_a_subpackage(explorer: Explorer) -> None:
    import tensor_graphs.extract.solve.extraction as extraction

    assert isinstance(tg.extract(explorer), extraction.Extraction)
    assert Path(tg.extract.__file__).parent.name == "extract"


def test_attention_has_the_usual_scale() -> None:
    q = tg.input("q", (1, 2, 4, 16))
    assert tg.attention(q, q, q).attr("scale") == pytest.approx(0.25)
    free = tg.input("f", (1, 2, 4, tg.dim("d")))
    with pytest.raises(tg.errors.UsageError, match="no default scale"):
        tg.attention(free, free, free)

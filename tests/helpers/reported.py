"""A run as if its networks had been trained, and the page of its report."""

import html.parser

import numpy as np

from bqnes_jax.families import CellFamily, with_seeds
from bqnes_jax.files import write_json
from bqnes_jax.kernels import WL
from bqnes_jax.runs import Record, Run, configure
from bqnes_jax.spaces import NATS
from bqnes_jax.storage import Entry, Manifest, Store

# One shape for all runs here, so that each selection is compiled once.
COUNT, VALID, TEST, CLASSES = 9, 40, 30, 3
TEMPERATURE = 7.5
# Log-likelihoods of networks of which two learnt nothing.
HOPELESS = np.array([-70, -72, -75, -80, -90, -1e5, -np.inf, -74, -73], np.float32)
MANIFEST = Manifest("nats", "toy", {"steps": 3}, VALID, TEST, CLASSES)


def make_run(
    directory,
    counts=(5, 7, 9),
    failed=(),
    algorithm="BQ-S",
    size=3,
    status=0,
    seeds=1,
    **changed,
):
    """Make a run as if its networks had been trained, and save its ensemble.

    With several weight seeds, each architecture has all of them.
    """
    random = np.random.default_rng(0)
    archs = np.asarray(NATS.from_index(random.choice(NATS.size, COUNT // seeds, replace=False)))
    archs, own = np.repeat(archs, seeds, axis=0), np.tile(np.arange(seeds), COUNT // seeds)
    labels = {"valid": np.arange(VALID) % CLASSES, "test": np.arange(TEST) % CLASSES}

    def predictions(truth, skill):
        logits = random.normal(size=(len(truth), CLASSES))
        logits[np.arange(len(truth)), truth] += skill
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    store = Store.open(directory / "store", MANIFEST)
    log_probs = np.full((COUNT, VALID), np.nan, np.float32)
    for i, arch in enumerate(archs):
        valid, test = (predictions(truth, 1.5) for truth in labels.values())
        if i in failed:
            store.put(Entry(NATS.to_string(arch), int(own[i]), "failed"))
            continue
        entry = Entry(NATS.to_string(arch), int(own[i]), "ok", valid, test, variables=np.ones(2))
        store.put(entry)
        log_probs[i] = valid[np.arange(VALID), labels["valid"]]
    placed = archs if seeds == 1 else np.concatenate([archs, own[:, None]], axis=1)
    record = Record(
        placed.astype(np.int32),
        log_probs.sum(axis=1),
        log_probs,
        np.zeros(COUNT, np.float32),
        np.asarray(WL(NATS).gram(archs)),
        np.zeros(COUNT, np.float32),
        np.array(TEMPERATURE, np.float32),
        np.full(COUNT, 1 / COUNT, np.float32),
        np.array(counts, np.int32),
        np.linspace(1, 2.5, len(counts)).astype(np.float32),
        np.linspace(-0.8, -0.9, len(counts)).astype(np.float32),
        np.full(len(counts), 0.05, np.float32),
        np.full(len(counts), status, np.int32),
        labels["test"],
        np.array([8, 8, 1]),
        np.array(CLASSES),
    )
    config = configure(
        data="toy",
        algorithm=algorithm,
        ensemble_size=size,
        initial=counts[0],
        budget=COUNT,
        seeds=seeds,
    )
    write_json(directory / "config.json", {"versions": {"bqnes-jax": "0", "jax": "1"}})
    family = with_seeds(CellFamily(config.train), seeds)
    run = Run(directory, config, family, record._replace(**changed))
    if len(failed) < COUNT:
        run.ensemble().save()
    return run


class Page(html.parser.HTMLParser):
    """What a page is made of; refuses tags that do not match.

    Attributes:
        text: the file.
        said: what is read, without figures, spaces in place of line ends.
        titles: of the sections.
        tags: each with its attributes.
        attributes: each with its tag.
    """

    def __init__(self, path):
        super().__init__()
        self.open, self.attributes, self.text, self.titles = [], [], path.read_text(), []
        self.tags, self._words = [], []
        self.feed(self.text)
        assert not self.open
        self.said = " ".join(" ".join(self._words).split())

    def handle_starttag(self, tag, attrs):
        self._note(tag, attrs)
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self._note(tag, attrs)

    def _note(self, tag, attrs):
        self.attributes += [(tag, *attr) for attr in attrs]
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.titles.append(data)
        if not {"svg", "style", "nav"} & set(self.open):
            self._words.append(data)

    def values(self, name, tag=None):
        return [value for of, attr, value in self.attributes if attr == name and tag in (None, of)]

    def section(self, title):
        """Return what a section says."""
        _, _, rest = self.said.partition(f" {title} ")
        after = self.titles[self.titles.index(title) + 1 :][:1]
        return rest.partition(f" {after[0]} ")[0] if after else rest

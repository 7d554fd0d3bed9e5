"""The classifier's parts against values worked out by hand: metrics, cuts, batches, the reading of
a dataset, padding.
"""

import importlib
from typing import Any

import pytest

pytestmark = pytest.mark.torch
np: Any = None
torch: Any = None
classifier: Any = None
reading: Any = None


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    """Import them when the first test runs: every worker collects this file."""
    globals().update(
        np=importlib.import_module("numpy"),
        torch=importlib.import_module("torch"),
        classifier=importlib.import_module("hpctrain.training.classifier"),
        reading=importlib.import_module("hpctrain.training.timelines"),
    )


# -- metrics ---------------------------------------------------------------------------------------


def test_auroc_is_the_share_of_pairs_in_the_right_order() -> None:
    scores, positive = np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True])
    assert reading.auroc(scores, positive) == 0.75  # of 4 pairs, (0.35, 0.4) is the wrong way round
    assert (
        reading.auroc(np.array([1.0, 1.0, 1.0]), np.array([True, False, False])) == 0.5
    )  # ties count half
    assert (
        reading.auroc(np.array([2.0, 1.0, 1.0]), np.array([True, True, False])) == 0.75
    )  # one pair right, one tied
    assert reading.auroc(scores, ~positive) == 0.25
    assert reading.auroc(scores, np.ones(4, dtype=bool)) is None
    draw = np.random.default_rng(0)
    scores, positive = draw.integers(0, 20, 300).astype(float), draw.random(300) < 0.3
    pairs = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
    assert reading.auroc(scores, positive) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def test_metrics_of_each_kind() -> None:
    two = reading.compute_metrics(
        "single", np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 3.0], [0.5, 0.0]]), np.array([0, 1, 1, 1])
    )
    assert two == {"accuracy": 0.75, "f1_macro": pytest.approx((2 / 3 + 0.8) / 2), "auroc": 1.0}
    sure = reading.compute_metrics(
        "single", np.array([[0.0, 800.0], [0.0, 900.0], [700.0, 0.0]]), np.array([0, 1, 0])
    )
    assert sure["auroc"] == 1.0, "probabilities that round to 1 are not the same"
    three = reading.compute_metrics(
        "single",
        np.array([[3.0, 1, 0], [0, 3.0, 0], [0, 0, 2.0], [3.0, 0, 0]]),
        np.array([0, 1, 1, 0]),
    )
    assert three["accuracy"] == 0.75
    # probabilities of class 1: 0.114, 0.909, 0.107, 0.045; the pair of rows 2 and 0 is the wrong
    # way round
    assert three["auroc"] == pytest.approx((1.0 + 3 / 4) / 2), (
        "a class that does not occur has no AUROC"
    )
    assert "auroc" not in reading.compute_metrics(
        "single", np.array([[3.0, 0], [1.0, 0]]), np.array([0, 0])
    )
    several = reading.compute_metrics(
        "multi",
        np.array([[1.0, -1], [1.0, 2.0], [-1.0, -3.0]]),
        np.array([[1.0, 0], [0, 1.0], [0, 0]]),
    )
    assert several == {
        "accuracy": pytest.approx(2 / 3),
        "f1_macro": pytest.approx((2 / 3 + 1) / 2),
        "auroc": pytest.approx((0.75 + 1) / 2),
    }
    number = reading.compute_metrics(
        "regression", np.array([[1.0], [2.0], [4.0]]), np.array([1.0, 3.0, 5.0])
    )
    assert number == {
        "mse": pytest.approx(2 / 3),
        "mae": pytest.approx(2 / 3),
        "r2": pytest.approx(1 - 2 / 8),
    }
    assert reading.compute_metrics("regression", np.array([1.0, 2.0]), np.array([1.0, 1.0])) == {
        "mse": 0.5,
        "mae": 0.5,
    }
    for kind, found in (("single", two), ("multi", several), ("regression", number)):
        assert set(found) | {"loss"} == set(reading.NAMES[kind])


# -- rows ------------------------------------------------------------------------------------------


def test_a_cut_depends_on_the_seed_the_epoch_and_the_row_alone() -> None:
    cut = classifier.Cut(probability=0.5, least=3, seed=7)
    found = {(row, epoch): cut.of(20, row, epoch) for row in range(400) for epoch in range(3)}
    assert found == {
        key: classifier.Cut(probability=0.5, least=3, seed=7).of(20, *key)
        for key in reversed(found)
    }
    assert all(begin == 0 and 3 <= end <= 20 for begin, end in found.values())
    shorter = sum(end < 20 for _, end in found.values())
    assert (
        450 < shorter < 680
    )  # half of 1200, but for those that are "cut" to all of their 20 events
    assert {end for _, end in found.values()} == set(range(3, 21))
    assert any(found[row, 0] != found[row, 1] for row in range(400))
    assert any(
        classifier.Cut(probability=0.5, least=3, seed=8).of(20, row, 0) != found[row, 0]
        for row in range(400)
    )


def test_the_last_events_are_kept_of_what_is_too_long() -> None:
    assert classifier.Cut(most=4).of(10, 0, 0) == (6, 10)
    assert classifier.Cut(most=4).of(3, 0, 0) == (0, 3)
    assert all(
        end - begin <= 4
        for begin, end in (
            classifier.Cut(probability=1, most=4).of(10, row, 0) for row in range(50)
        )
    )
    assert classifier.Cut(probability=1, least=50).of(10, 0, 0) == (0, 10), (
        "a row that is shorter stays whole"
    )


def test_batches_are_padded_on_the_right() -> None:
    rows = [{"input_ids": [5, 6, 7], "labels": 1}, {"input_ids": [8], "labels": 0}]
    batch = classifier.Collator(pad=9, floats=False)(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [1, 0]
    assert classifier.Collator(pad=9, floats=True)(rows)["labels"].dtype.is_floating_point


def timelines(rows: dict[str, list[Any]], **cut: Any) -> Any:
    import datasets

    data = datasets.Dataset.from_dict(rows)
    found = reading.scan(data, 0, "train")
    assert found.problems == ()
    return classifier.Timelines(data, None, found.lengths, data["label"], classifier.Cut(**cut))


def test_rows_come_without_padding_and_differ_from_epoch_to_epoch_also_in_workers_that_live_on() -> (
    None
):
    from torch.utils.data import DataLoader

    rows = [[*range(1, 30), *[0] * 6] for _ in range(40)]
    data = timelines({"input_ids": rows, "label": [0] * 40}, probability=1.0)
    seen = {}
    loader = DataLoader(
        data, batch_size=4, num_workers=1, persistent_workers=True, collate_fn=lambda batch: batch
    )
    for epoch in range(3):
        data.set_epoch(epoch)
        seen[epoch] = [tuple(row["input_ids"]) for batch in loader for row in batch]
        assert seen[epoch] == [tuple(data[number]["input_ids"]) for number in range(40)]
    assert all(0 not in row and row[0] == 1 for row in seen[0])
    assert len({tuple(each) for each in seen.values()}) == 3


# -- reading a dataset -----------------------------------------------------------------------------


def read(rows: dict[str, list[Any]], pad: int | None = 0) -> Any:
    import datasets

    return reading.scan(datasets.Dataset.from_dict(rows), pad, "train")


def test_padding_is_found_by_its_id_or_by_the_mask() -> None:
    found = read({"input_ids": [[5, 6, 0, 0], [7, 0, 8, 0], [9, 9, 9, 9], [3]]})
    assert (found.lengths, found.highest, found.last) == ([2, 3, 4, 1], 9, {6, 8, 9, 3})
    assert found.problems == ()
    masked = {
        "input_ids": [[5, 6, 99, 99], [7, 99, 99, 99]],
        "attention_mask": [[1, 1, 0, 0], [1, 0, 0, 0]],
    }
    found = read(masked, pad=None)
    assert (found.lengths, found.highest, found.last) == (
        [2, 1],
        7,
        {6, 7},
    ), "ids of the padding do not count"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            {"input_ids": [[0, 0, 5], [4, 5, 6]]},
            "1 of 2 rows of split 'train' begin with the padding, 0: they are padded on the left",
        ),
        ({"input_ids": [[0, 0], [4], []]}, "2 of 3 rows of split 'train' have no events"),
        (
            {"input_ids": [[1, 2]], "attention_mask": [[0, 1]]},
            "are not padded on the right: attention_mask has a 0 in front of a 1",
        ),
        (
            {"input_ids": [[1, 2]], "attention_mask": [[1]]},
            "have an attention_mask of another length",
        ),
        ({"input_ids": [[1, -2]]}, "split 'train' has the event id -2"),
    ],
)
def test_rows_that_would_be_misread_are_told(rows: dict[str, list[Any]], said: str) -> None:
    assert any(said in each for each in read(rows).problems), read(rows).problems


def labels(train: list[Any], test: list[Any] | None = None, names: list[str] | None = None) -> Any:
    import datasets

    splits = {"train": train, **({"test": test} if test is not None else {})}
    return reading.labels_of(
        {name: datasets.Dataset.from_dict({"label": values}) for name, values in splits.items()},
        "label",
        names=names,
    )


def test_labels_of_each_kind_become_numbers() -> None:
    found = labels(["yes", "no", "yes"], ["no"])
    assert (found.kind, found.names, found.values) == ("single", ("no", "yes"), ([1, 0, 1], [0]))
    assert reading.counts_of(found) == (1, 2)
    found = labels([0, 2, 2], names=["a", "b", "c"])
    assert (found.names, reading.counts_of(found)) == (("a", "b", "c"), (1, 0, 2))
    assert labels([True, False]).names == ("0", "1")
    found = labels([[1, 0, 1], [0, 0, 1]])
    assert (found.kind, found.names, reading.counts_of(found)) == (
        "multi",
        ("0", "1", "2"),
        (1, 0, 2),
    )
    assert labels([0.5, 1.0]).kind == "regression"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"train": ["a", "b"], "test": ["c"]},
            "split 'test' has labels that are no class: c; the classes are a, b",
        ),
        (
            {"train": [0, 1], "test": [2]},
            "split 'test' has labels that are no class: 2; the classes are 0, 1",
        ),
        ({"train": [0, -100, 1]}, "split 'train' has labels that are no class: -100"),
        (
            {"train": [0, 1, 2], "names": ["a", "b"]},
            "split 'train' has labels that are no class: 2",
        ),
        ({"train": [0, None]}, "1 rows of split 'train' have no label"),
        ({"train": ["a", "a"]}, "all rows have one label, a: there is nothing to tell apart"),
        ({"train": [[0, 1], [0, 2]]}, "1 labels of split 'train' are not 2 numbers of 0 and 1"),
        (
            {"train": [[0, 1], [1, 0]], "names": ["a"]},
            "each label has 2 places, and there are 1 class names",
        ),
        ({"train": [0.5, float("nan")]}, "1 labels are NaN"),
    ],
)
def test_labels_that_cannot_be_learned_are_told(given: dict[str, Any], said: str) -> None:
    found = labels(**given)
    assert any(said in problem.what for problem in found.problems), found.problems


# -- loss ------------------------------------------------------------------------------------------


def facts(**more: Any) -> Any:
    values = {
        "kind": "single",
        "names": ("a", "b"),
        "counts": (3, 1),
        "pad": 0,
        "longest": 8,
        "highest": 9,
        "last": frozenset({9}),
        "vocabulary": None,
        "file": None,
        "rows": 4,
    }
    return reading.Facts(**{**values, **more})


def test_the_loss_of_a_step_is_the_mean_over_its_rows_however_they_are_divided() -> None:
    logits, target = (
        torch.tensor([[2.0, 0.5], [0.1, 0.2], [1.0, 3.0], [0.0, 0.0]]),
        torch.tensor([0, 0, 0, 1]),
    )
    plain = classifier.loss_function(facts(), weights="none", smoothing=0.0)
    assert float(plain({"logits": logits}, target)) == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits, target))
    )
    halves = sum(
        plain({"logits": logits[part]}, target[part], num_items_in_batch=4)
        for part in (slice(0, 3), slice(3, 4))
    )
    assert float(halves) == pytest.approx(float(torch.nn.functional.cross_entropy(logits, target)))
    balanced = classifier.loss_function(facts(), weights="balanced", smoothing=0.0)
    each = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    assert float(balanced({"logits": logits}, target)) == pytest.approx(
        float(((each[:3] * 2 / 3).sum() + each[3] * 2) / 4)
    )
    smooth = classifier.loss_function(facts(), weights="none", smoothing=0.1)
    assert float(smooth({"logits": logits}, target)) == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits, target, label_smoothing=0.1))
    )


def test_losses_of_several_labels_and_of_numbers() -> None:
    logits, target = torch.tensor([[2.0, -1.0], [0.5, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found = classifier.loss_function(
        facts(kind="multi", counts=(3, 1)), weights="balanced", smoothing=0.0
    )({"logits": logits}, target)
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, target, pos_weight=torch.tensor([1 / 3, 3.0])
    )
    assert float(found) == pytest.approx(float(wanted))
    number = classifier.loss_function(
        facts(kind="regression", names=(), counts=()), weights="none", smoothing=0.0
    )
    assert float(
        number({"logits": torch.tensor([[1.0], [3.0]])}, torch.tensor([0.0, 1.0]))
    ) == pytest.approx(2.5)


# -- padding --------------------------------------------------------------------------------------

SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
FAMILIES = {
    "llama": {**SMALL, "num_key_value_heads": 1},
    "qwen3": {**SMALL, "num_key_value_heads": 1, "head_dim": 16},
    "mistral": {**SMALL, "num_key_value_heads": 1},
    "gpt2": {
        "vocab_size": 40,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 64,
        "eos_token_id": 1,
        "bos_token_id": 1,
    },
    "gpt_neox": SMALL,
    "bert": {**SMALL, "max_position_embeddings": 64},
    "roberta": {**SMALL, "max_position_embeddings": 64},
    "distilbert": {"vocab_size": 40, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 2},
    "modernbert": SMALL,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_in_a_batch_gives_what_it_gives_alone(family: str) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    torch.manual_seed(3)
    model = AutoModelForSequenceClassification.from_config(
        AutoConfig.for_model(family, num_labels=3, pad_token_id=0, **FAMILIES[family])
    ).eval()
    rows = [{"input_ids": [5, 9, 4, 11, 8]}, {"input_ids": [7, 3]}, {"input_ids": [12]}]
    with torch.no_grad():
        together = model(**classifier.Collator(pad=0, floats=False)(rows)).logits
        for number, row in enumerate(rows):
            alone = model(input_ids=torch.tensor([row["input_ids"]])).logits[0]
            assert torch.allclose(together[number], alone, atol=1e-5)

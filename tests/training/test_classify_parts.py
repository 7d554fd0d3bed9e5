"""The classifier's parts against values worked out by hand: metrics, batches, the reading of a
dataset, padding.
"""

import importlib
from typing import Any

import pytest

pytestmark = pytest.mark.torch
np: Any = None
torch: Any = None
classifier: Any = None


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    """Import them when the first test runs: every worker collects this file."""
    globals().update(
        np=importlib.import_module("numpy"),
        torch=importlib.import_module("torch"),
        classifier=importlib.import_module("hpctrain.training.classifier"),
    )


# -- metrics ---------------------------------------------------------------------------------------


def test_auroc_is_the_share_of_pairs_in_the_right_order() -> None:
    scores, positive = np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True])
    assert (
        classifier.auroc(scores, positive) == 0.75
    )  # of 4 pairs, (0.35, 0.4) is the wrong way round
    assert (
        classifier.auroc(np.array([1.0, 1.0, 1.0]), np.array([True, False, False])) == 0.5
    )  # ties count half
    assert (
        classifier.auroc(np.array([2.0, 1.0, 1.0]), np.array([True, True, False])) == 0.75
    )  # one pair right, one tied
    assert classifier.auroc(scores, ~positive) == 0.25
    assert classifier.auroc(scores, np.ones(4, dtype=bool)) is None
    draw = np.random.default_rng(0)
    scores, positive = draw.integers(0, 20, 300).astype(float), draw.random(300) < 0.3
    pairs = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
    assert classifier.auroc(scores, positive) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def test_metrics_of_each_kind() -> None:
    two = classifier.compute_metrics(
        "single", np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 3.0], [0.5, 0.0]]), np.array([0, 1, 1, 1])
    )
    assert two == {"accuracy": 0.75, "f1_macro": pytest.approx((2 / 3 + 0.8) / 2), "auroc": 1.0}
    sure = classifier.compute_metrics(
        "single", np.array([[0.0, 800.0], [0.0, 900.0], [700.0, 0.0]]), np.array([0, 1, 0])
    )
    assert sure["auroc"] == 1.0, "probabilities that round to 1 are not the same"
    three = classifier.compute_metrics(
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
    assert "auroc" not in classifier.compute_metrics(
        "single", np.array([[3.0, 0], [1.0, 0]]), np.array([0, 0])
    )
    several = classifier.compute_metrics(
        "multi",
        np.array([[1.0, -1], [1.0, 2.0], [-1.0, -3.0]]),
        np.array([[1.0, 0], [0, 1.0], [0, 0]]),
    )
    assert several == {
        "accuracy": pytest.approx(2 / 3),
        "f1_macro": pytest.approx((2 / 3 + 1) / 2),
        "auroc": pytest.approx((0.75 + 1) / 2),
    }
    assert classifier.compute_metrics("regression", np.array([[1.0]]), np.array([1.0])) == {}


# -- rows ------------------------------------------------------------------------------------------


def test_batches_are_padded_on_the_right() -> None:
    rows = [{"input_ids": [5, 6, 7], "labels": 1}, {"input_ids": [8], "labels": 0}]
    batch = classifier.collate(rows, pad=9)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [1, 0]


def test_rows_come_without_padding_and_with_their_last_events() -> None:
    rows = {"input_ids": [[5, 6, 7, 0], [8, 0, 9, 0]], "labels": [1, 0]}
    assert classifier.unpadded(0, None)(rows)["input_ids"] == [[5, 6, 7], [8, 0, 9]]
    assert classifier.unpadded(0, 2)(rows) == {"input_ids": [[6, 7], [0, 9]], "labels": [1, 0]}
    masked = {**rows, "attention_mask": [[1, 1, 0, 0], [1, 1, 1, 1]]}
    assert classifier.unpadded(7, None)(masked)["input_ids"] == [[5, 6], [8, 0, 9, 0]]


# -- reading a dataset -----------------------------------------------------------------------------


def read(rows: dict[str, list[Any]], pad: int | None = 0) -> tuple[Any, list[str]]:
    import datasets

    problems: list[Any] = []
    found = classifier.scan(datasets.Dataset.from_dict(rows), pad, "train", problems)
    return found, [problem.what for problem in problems]


def test_padding_is_found_by_its_id_or_by_the_mask() -> None:
    rows = {"input_ids": [[5, 6, 0, 0], [7, 0, 8, 0], [9, 9, 9, 9], [3]]}
    assert read(rows) == ((4, 9, {6, 8, 9, 3}), [])
    masked = {
        "input_ids": [[5, 6, 99, 99], [7, 99, 99, 99]],
        "attention_mask": [[1, 1, 0, 0], [1, 0, 0, 0]],
    }
    assert read(masked, pad=None) == ((2, 7, {6, 7}), []), "ids of the padding do not count"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            {"input_ids": [[0, 0, 5], [4, 5, 6]]},
            "1 of 2 rows of split 'train' are not padded on the right",
        ),
        ({"input_ids": [[0, 0], [4], []]}, "2 of 3 rows of split 'train' have no events"),
        ({"input_ids": [[1, 2]], "attention_mask": [[0, 1]]}, "are not padded on the right"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, "an attention_mask of another length"),
        ({"input_ids": [[1, -2]]}, "have a negative event id"),
    ],
)
def test_rows_that_would_be_misread_are_told(rows: dict[str, list[Any]], said: str) -> None:
    _, problems = read(rows)
    assert any(said in each for each in problems), problems


def labels(
    train: list[Any], test: list[Any] | None = None, names: list[str] | None = None
) -> tuple[Any, list[str]]:
    import datasets

    splits = {"train": train, **({"test": test} if test is not None else {})}
    problems: list[Any] = []
    made = {name: datasets.Dataset.from_dict({"label": splits[name]}) for name in splits}
    return classifier.labels_of(made, "label", names, problems), [each.what for each in problems]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((["yes", "no", "yes"], ["no"]), ("single", ("no", "yes"), [[1, 0, 1], [0]])),
        (([0, 2, 2], None, ["a", "b", "c"]), ("single", ("a", "b", "c"), [[0, 2, 2]])),
        (([True, False],), ("single", ("0", "1"), [[1, 0]])),
        (([[1, 0], [0, 1]],), ("multi", ("0", "1"), [[[1.0, 0.0], [0.0, 1.0]]])),
        (([0.5, 1.0],), ("regression", (), [[0.5, 1.0]])),
    ],
)
def test_labels_of_each_kind_become_numbers(given: tuple[Any, ...], found: Any) -> None:
    assert labels(*given) == (found, [])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train": ["a", "b"], "test": ["c"]}, "split 'test' has labels that are no class"),
        ({"train": [0, 1], "test": [2]}, "the classes are 0, 1: 2"),
        ({"train": [0, -100, 1]}, "the classes are 0, 1: -100"),
        ({"train": [0, 1, 2], "names": ["a", "b"]}, "the classes are a, b: 2"),
        ({"train": [0, None, 1]}, "the classes are 0, 1: None"),
        ({"train": [None, None]}, "labels like None are none of a class"),
        ({"train": [{"a": 1}]}, "labels like {'a': 1} are none of a class"),
        ({"train": [[[1], [0]]]}, "no list of 0 and 1 for 2 classes: [[1], [0]]"),
        ({"train": ["a", "a"]}, "all rows have one label, a: there is nothing to tell apart"),
        ({"train": [[0, 1], [0, 2]]}, "no list of 0 and 1 for 2 classes: [0, 2]"),
        ({"train": [[0, 1], [1, 0]], "names": ["a"]}, "no list of 0 and 1 for 1 classes"),
        ({"train": [0.5, float("nan")]}, "no finite number"),
    ],
)
def test_labels_that_cannot_be_learned_are_told(given: dict[str, Any], said: str) -> None:
    _, problems = labels(**given)
    assert any(said in problem for problem in problems), problems


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
    return classifier.Facts(**{**values, **more})


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
        together = model(**classifier.collate(rows, pad=0)).logits
        for number, row in enumerate(rows):
            alone = model(input_ids=torch.tensor([row["input_ids"]])).logits[0]
            assert torch.allclose(together[number], alone, atol=1e-5)

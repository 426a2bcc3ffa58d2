"""`dslide.torch.OutputLayer` on one rank: loss and gradients beside PyTorch's own, labels, state, bad input."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch

from dslide.errors import ConfigError, DataError, Diverged, ModelError
from dslide.torch import OutputLayer

WIDTH, LABELS, ROWS = 33, 50, 20
SMALL = {"output": "random", "random_negatives": 16, "threads": 1}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def vectors(rows: int = ROWS, width: int = WIDTH, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def padded_labels(rows: int = ROWS, several: int = 3, count: int = LABELS, seed: int = 1) -> torch.Tensor:
    """Between none and all of `several` distinct labels, at least one."""
    random = np.random.default_rng(seed)
    table = np.full((rows, several), -1)
    for row in table:
        found = random.choice(count, random.integers(1, several + 1), replace=False)
        row[random.permutation(several)[: len(found)]] = found
    return torch.from_numpy(table)


def targets_of(labels: torch.Tensor, count: int = LABELS) -> torch.Tensor:
    target = torch.zeros(len(labels), count)
    for row, some in enumerate(labels.reshape(len(labels), -1).tolist()):
        for label in some:
            if label >= 0:
                target[row, label] += 1
    return target


def reference_loss(z: torch.Tensor, target: torch.Tensor, loss: str) -> torch.Tensor:
    if loss == "softmax":
        return torch.nn.functional.cross_entropy(z, target / target.sum(1, keepdim=True))
    each = torch.nn.functional.binary_cross_entropy_with_logits(z, target, reduction="sum")
    return each / len(z)


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((got - want).detach().abs().max() / want.detach().abs().max())


# ---- the loss -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("several", [1, 4])
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_gradients_are_those_of_autograd(loss: str, several: int, training: bool) -> None:
    """With all labels active: loss, gradient of h, and in training a step of plain SGD, to 1e-5."""
    layer = OutputLayer(
        WIDTH, LABELS, loss=loss, output="full", optimizer="sgd", learning_rate=0.1, init_scale=3, threads=1
    )
    layer.train(training)
    before = layer.weight.clone()
    weight, bias = before.clone().requires_grad_(), layer.bias.clone().requires_grad_()
    h, labels = vectors().requires_grad_(), padded_labels(several=several)
    got = layer(h, labels)
    (2 * got).backward()
    gradient, h.grad = h.grad, None
    want = reference_loss(h @ weight.T + bias, targets_of(labels), loss)
    (2 * want).backward()
    assert got.item() == pytest.approx(want.item(), rel=1e-5)
    assert off(gradient, h.grad) < 1e-5
    stepped = before - 0.1 * weight.grad / 2 if training else before  # by the loss itself, not by what is made of it
    assert off(layer.weight, stepped) < 1e-6
    assert int(layer.steps) == training


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_a_training_is_that_of_pytorch(optimizer: str) -> None:
    """Encoder and output layer together, all labels active, for ten steps."""
    layer = OutputLayer(WIDTH, LABELS, output="full", optimizer=optimizer, learning_rate=0.01, epsilon=1e-3, threads=1)
    encoder = torch.nn.Linear(7, WIDTH)
    other, linear = copy.deepcopy(encoder), torch.nn.Linear(WIDTH, LABELS)
    with torch.no_grad():
        linear.weight.copy_(layer.weight)
        linear.bias.copy_(layer.bias)
    kind = {"adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad}[optimizer]
    ours = torch.optim.SGD(encoder.parameters(), lr=0.1)
    theirs = [torch.optim.SGD(other.parameters(), lr=0.1), kind(linear.parameters(), lr=0.01, eps=1e-3)]
    for step in range(10):
        x, labels = vectors(width=7, seed=step), torch.arange(ROWS) + step
        ours.zero_grad()
        got = layer(torch.relu(encoder(x)), labels)
        got.backward()
        ours.step()
        for each in theirs:
            each.zero_grad()
        want = torch.nn.functional.cross_entropy(linear(torch.relu(other(x))), labels)
        want.backward()
        for each in theirs:
            each.step()
        assert got.item() == pytest.approx(want.item(), rel=1e-5)
    assert off(layer.weight, linear.weight) < 1e-5
    assert off(encoder.weight, other.weight) < 1e-5


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_sampling_is_unbiased(loss: str) -> None:
    """Over many steps of size 0 the sampled sums have the exact ones as their mean, within 4 standard errors: with
    sigmoid the loss; with softmax of one row 1 / p, whose logarithm the loss is."""
    layer = OutputLayer(WIDTH, 300, loss=loss, learning_rate=0, init_scale=5, **SMALL)
    h, labels = vectors(1), torch.tensor([7])
    exact = layer.eval()(h, labels).double()
    biased = OutputLayer(WIDTH, 300, loss=loss, learning_rate=0, init_scale=5, correction=False, **SMALL)
    for each in (layer.train(), biased):
        sampled = torch.stack([each(h, labels).detach() for _ in range(2000)]).double()
        want = exact
        if loss == "softmax":
            want, sampled = exact.exp(), sampled.exp()
        assert sampled.std() > 0.05 * sampled.mean()  # it is sampled
        errors = abs(sampled.mean() - want) / (sampled.std() / 2000**0.5)
        assert errors < 4 if each is layer else errors > 20  # without the correction it is nothing of the kind


def test_it_learns_among_sampled_labels() -> None:
    layer = OutputLayer(WIDTH, 10_000, threads=1)
    assert layer.config.output == "cells"
    h, labels = vectors(64), torch.randint(0, 10_000, (64,), generator=torch.Generator().manual_seed(2))
    for _ in range(60):
        layer(h, labels)
    for approximate in (False, True):
        found = layer.topk(h, 3, approximate=approximate)
        assert (found.indices[:, 0] == labels).float().mean() > 0.9
    assert (found.values[:, :-1] >= found.values[:, 1:]).all()


def test_losses_without_a_step() -> None:
    """In evaluation, and without gradients, the loss is exact and nothing changes."""
    layer, h, labels = OutputLayer(WIDTH, 300, **SMALL), vectors(), padded_labels(count=300)
    before = layer.weight.clone()
    exact = torch.nn.functional.cross_entropy(
        h @ layer.weight.T + layer.bias, targets_of(labels, 300) / targets_of(labels, 300).sum(1, keepdim=True)
    )
    with torch.no_grad():
        assert layer(h, labels).item() == pytest.approx(exact.item(), rel=1e-5)
    layer.eval()
    assert layer(h, labels).item() == pytest.approx(exact.item(), rel=1e-5)
    assert int(layer.steps) == 0
    assert torch.equal(layer.weight, before)


def test_a_frozen_encoder_needs_no_gradient() -> None:
    layer = OutputLayer(WIDTH, LABELS, threads=1)
    layer(vectors(), torch.arange(ROWS)).backward()
    assert int(layer.steps) == 1


def test_accumulated_gradients_are_those_of_the_batches() -> None:
    """Two batches with half the loss each: the encoder's gradient is the mean of both, the layer has stepped twice."""
    layer = OutputLayer(WIDTH, LABELS, output="full", learning_rate=0, threads=1)
    h, labels = vectors().requires_grad_(), torch.arange(ROWS)
    layer(h, labels).backward()
    whole, h.grad = h.grad, None
    for part in (slice(0, 10), slice(10, 20)):
        (layer(h[part], labels[part]) / 2).backward()
    assert off(h.grad, whole) < 1e-5
    assert int(layer.steps) == 3


def test_autocast() -> None:
    layer, encoder = OutputLayer(WIDTH, LABELS, output="full", learning_rate=0, threads=1), torch.nn.Linear(7, WIDTH)
    x, labels = vectors(width=7), torch.arange(ROWS)
    want = layer(encoder(x), labels)
    with torch.autocast("cpu", torch.bfloat16):
        h = encoder(x)
        assert h.dtype == torch.bfloat16
        got = layer(h, labels)
    got.backward()
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(want.item(), rel=1e-2)
    assert encoder.weight.grad.abs().max() > 0


def test_torch_compile_takes_it_as_one_operator() -> None:
    """Without a break of the graph, with the same result, and each of two equal calls makes a step."""

    def model(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        h = torch.relu(encoder(x))
        return layer(h, labels) + layer(h, labels)

    x, labels, results = vectors(width=7), padded_labels(), []
    for compiled in (False, True):
        torch.manual_seed(0)
        encoder, layer = torch.nn.Linear(7, WIDTH), OutputLayer(WIDTH, 300, **SMALL)
        run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        for _ in range(2):
            loss = run(x, labels)
            loss.backward()
        results.append((loss.detach(), encoder.weight.grad, layer.weight.clone()))
        assert int(layer.steps) == 4
    for got, want in zip(*results, strict=True):
        assert torch.allclose(got, want, rtol=1e-6)


# ---- labels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_all_forms_of_labels_mean_the_same(loss: str) -> None:
    labels = padded_labels()
    layer = OutputLayer(WIDTH, LABELS, loss=loss, threads=1).eval()
    h, want = vectors(), None
    sparse = targets_of(labels).to_sparse_csr()
    lists = [[label for label in row if label >= 0] for row in labels.tolist()]
    forms = [
        labels, labels.to(torch.int32), sparse, (sparse.crow_indices(), sparse.col_indices()),
        (sparse.crow_indices(), sparse.col_indices(), sparse.values()), lists, [torch.tensor(row) for row in lists],
    ]  # fmt: skip
    for form in forms:
        got = layer(h, form).item()
        want = want or got
        assert got == want
        assert layer.log_prob(h, form).sum().item() == pytest.approx(layer.log_prob(h, labels).sum().item(), rel=1e-5)


def test_one_label_a_row_in_two_forms() -> None:
    layer, labels = OutputLayer(WIDTH, LABELS, threads=1).eval(), torch.arange(ROWS)
    assert layer(vectors(), labels) == layer(vectors(), labels.tolist()) == layer(vectors(), labels[:, None])


def test_weights_of_labels_count() -> None:
    layer, h = OutputLayer(WIDTH, LABELS, threads=1).eval(), vectors(2)
    crow, columns = torch.tensor([0, 2, 3]), torch.tensor([4, 9, 1])
    got = layer(h, (crow, columns, torch.tensor([3.0, 1.0, 2.0])))
    logs = layer.log_prob(h, (crow, columns))
    assert got.item() == pytest.approx(-(0.75 * logs[0] + 0.25 * logs[1] + logs[2]).item() / 2, rel=1e-5)
    again = layer(h, torch.tensor([[4, 9, 4, 4], [1, -1, 1, -1]]))  # a label that is given twice counts twice
    assert again.item() == pytest.approx(got.item(), rel=1e-6)


def test_rows_without_labels_do_not_count_in_softmax() -> None:
    layer = OutputLayer(WIDTH, LABELS, output="full", learning_rate=0, threads=1)
    h, labels = vectors().requires_grad_(), torch.arange(ROWS)
    labels[::3] = -1
    kept = labels >= 0
    got = layer(h, labels)
    got.backward()
    assert got.item() == pytest.approx(layer(h.detach()[kept], labels[kept]).item(), rel=1e-6)
    assert (h.grad[~kept] == 0).all()
    assert (h.grad[kept] != 0).any(1).all()


def test_log_probabilities() -> None:
    for loss in ("softmax", "sigmoid"):
        layer, h, labels = OutputLayer(WIDTH, LABELS, loss=loss, init_scale=3, threads=1), vectors(), padded_labels()
        z = h @ layer.weight.T + layer.bias
        logs = torch.log_softmax(z, 1) if loss == "softmax" else torch.nn.functional.logsigmoid(z)
        want = torch.where(labels >= 0, logs.gather(1, labels.clamp(min=0)), 0.0)
        assert torch.allclose(layer.log_prob(h, labels), want, atol=1e-5)
        one = labels.max(1).values
        assert torch.allclose(layer.log_prob(h, one), logs.gather(1, one[:, None])[:, 0], atol=1e-5)


def test_topk_is_that_of_all_logits() -> None:
    layer, h = OutputLayer(WIDTH, LABELS, init_scale=3, threads=1), vectors()
    want = torch.topk(h @ layer.weight.T + layer.bias, 7)
    got = layer.topk(h, 7)
    assert torch.equal(got.indices, want.indices)
    assert torch.allclose(got.values, want.values, atol=1e-5)


@pytest.mark.parametrize("approximate", [True, False])
def test_excluded_labels_are_left_out(approximate: bool) -> None:
    layer, h = OutputLayer(WIDTH, LABELS, output="lsh", threads=1), vectors()
    layer(h, torch.arange(ROWS))
    best = layer.topk(h, LABELS, approximate).indices
    rest = layer.topk(h, LABELS, approximate, exclude=best[:, :3]).indices
    assert torch.equal(rest[:, :-3], best[:, 3:])
    assert (rest[:, -3:] == -1).all()


# ---- weights and state ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["float32", "bf16"])
def test_weights_are_the_layers_own_memory(weights: str) -> None:
    layer, h = OutputLayer(WIDTH, LABELS, weights=weights, threads=1).eval(), vectors(3)
    assert layer.weight.data_ptr() == layer.weight.data_ptr()
    assert layer.weight.dtype == {"float32": torch.float32, "bf16": torch.bfloat16}[weights]
    layer.weight[:] = 0
    layer.bias[:] = torch.arange(LABELS)
    layer.weights_changed()
    assert layer.topk(h, 2).indices.tolist() == [[49, 48]] * 3
    assert list(layer.parameters()) == []


@pytest.mark.parametrize(
    "options", [{}, {"output": "lsh"}, {"optimizer": "adam", "weights": "bf16", "output": "random"}]
)
def test_training_goes_on_from_a_state(options: dict) -> None:
    """After a round trip through a file, bit for bit, as if there had been none."""

    def layer() -> OutputLayer:
        return OutputLayer(WIDTH, 9000, rebuild_every=2, threads=1, **options)

    first, labels = layer(), torch.arange(ROWS) * 400
    for step in range(5):
        first(vectors(seed=step), labels)
    first.learning_rate = 0.02
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    others = [layer(), copy.deepcopy(first), pickle.loads(pickle.dumps(first))]
    others[0].load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    for step in range(5, 9):
        losses = {each(vectors(seed=step), labels).item() for each in (first, *others)}
        assert len(losses) == 1
    assert all(torch.equal(first.weight, other.weight) for other in others)
    assert {other.learning_rate for other in others} == {0.02}


def test_states_of_other_layers_are_refused() -> None:
    state = OutputLayer(WIDTH, LABELS, threads=1).state_dict()
    for other, why in (
        (OutputLayer(WIDTH, LABELS + 1), "labels = 50, but this one has 51"),
        (OutputLayer(WIDTH + 1, LABELS), "in_features = 33, but this one has 34"),
        (OutputLayer(WIDTH, LABELS, optimizer="adam"), "optimizer = adagrad, but this one has adam"),
        (OutputLayer(WIDTH, LABELS, weights="bf16"), "weights = float32, but this one has bf16"),
    ):
        with pytest.raises(ModelError, match=f"^the state is of a layer with {why}$"):
            other.load_state_dict(state)
    layer = OutputLayer(WIDTH, LABELS)
    before = layer.weight.clone()
    del state["_extra_state"]["arrays"]["layer0.bias"]
    with pytest.raises(ModelError, match=r"^array layer0.bias is missing"):
        layer.load_state_dict(state)
    assert torch.equal(layer.weight, before)
    with pytest.raises(ModelError, match=r"^expected the state of an output layer"):
        layer.load_state_dict({"steps": state["steps"], "_extra_state": 3})
    with pytest.raises(RuntimeError, match="_extra_state"):
        layer.load_state_dict({"steps": state["steps"]})


def test_schedulers_of_pytorch_set_the_rate() -> None:
    layer = OutputLayer(WIDTH, LABELS, learning_rate=0.4, threads=1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(layer.optimizer, 0.5)
    for _ in range(2):
        layer(vectors(), torch.arange(ROWS)).backward()
        layer.optimizer.step()
        scheduler.step()
    assert layer.learning_rate == 0.1
    assert "learning_rate=0.1" in repr(layer)
    before = layer.weight.clone()
    layer.learning_rate = 0
    layer(vectors(), torch.arange(ROWS))
    assert torch.equal(layer.weight, before)


def test_label_counts_set_the_bias() -> None:
    layer = OutputLayer(WIDTH, 4, threads=1)
    layer.weight[:] = 0
    layer.set_label_counts([60, 30, 0, 10], 100)
    chances = layer.log_prob(vectors(1), torch.arange(4)[None]).exp()[0]
    assert torch.allclose(chances, torch.tensor([0.6, 0.3, 0.0, 0.1]), atol=0.01)
    with pytest.raises(DataError, match=r"^counts: expected 4 numbers from 0 to the number of rows, 100$"):
        layer.set_label_counts([1, 2, 3], 100)


# ---- bad input ------------------------------------------------------------------------------------------------------


def not_finite() -> torch.Tensor:
    h = vectors()
    h[5, 2] = torch.nan
    return h


CROW = torch.arange(ROWS + 1)
WRONG = {
    r"h: row 5 has a number that is not finite": (not_finite(), torch.arange(ROWS)),
    r"h: expected the shape \(rows, 33\), not \(20, 34\)": (vectors(width=34), torch.arange(ROWS)),
    r"h: expected the shape \(rows, 33\), not \(33,\)": (vectors()[0], torch.arange(ROWS)),
    r"h: expected floating-point numbers, not torch.int64": (vectors().long(), torch.arange(ROWS)),
    r"h: expected a tensor \(rows, 33\), not ndarray": (vectors().numpy(), torch.arange(ROWS)),
    r"the batch is empty, expected at least one row with a label": (vectors(0), torch.arange(0)),
    r"the batch is empty, expected at least one row with a label ?": (vectors(), torch.full((ROWS, 2), -1)),
    r"labels: row 0 has label 50, expected 0 to 49": (vectors(), torch.arange(ROWS) + 50),
    r"labels: row 0 has label -2, expected 0 to 49": (vectors(), torch.arange(ROWS) - 2),
    r"labels: expected integers, not torch.float32": (vectors(), torch.arange(ROWS).float()),
    r"labels: expected integers, not torch.bool": (vectors(), torch.arange(ROWS) > 3),
    r"labels: expected 20 rows, .*, not the shape \[19\]": (vectors(), torch.arange(ROWS - 1)),
    r"labels: expected 21 crow_indices for 20 rows, not the shape \[20\]": (vectors(), (CROW[1:], CROW)),
    r"labels: crow_indices must ascend from 0 .*": (vectors(), (CROW, CROW)),
    r"labels: there are 20 col_indices but 3 weights": (vectors(), (CROW, CROW[:-1], torch.ones(3))),
    r"labels: row 7 has the weight 0, expected a number above 0": (vectors(), (CROW, CROW[:-1], CROW[:-1] != 7)),
    r"labels: row 1 has 'x', expected a number": (vectors(), [[1], ["x"]]),
    r"labels: expected .* list for each row, not str": (vectors(), "x"),
    r"labels: expected .* list for each row, not a tuple of 1": (vectors(), (CROW,)),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_rows_have_one_sentence(message: str) -> None:
    """And change nothing."""
    layer = OutputLayer(WIDTH, LABELS, threads=1)
    before = layer.weight.clone()
    with pytest.raises(DataError, match=f"^{message}$"):
        layer(*WRONG[message])
    assert torch.equal(layer.weight, before)
    assert int(layer.steps) == 0


def test_memory_that_is_not_contiguous_will_do() -> None:
    layer, labels = OutputLayer(WIDTH, LABELS, threads=1).eval(), torch.arange(2 * ROWS)[::2]
    h = vectors().T.contiguous().T.requires_grad_()
    assert not h.is_contiguous()
    got = layer(h, labels)
    got.backward()
    assert got == layer(h.contiguous(), labels.contiguous())
    assert h.grad.shape == h.shape


def test_float64_and_float16_are_computed_as_float32() -> None:
    layer, labels = OutputLayer(WIDTH, LABELS, threads=1).eval(), torch.arange(ROWS)
    for kind in (torch.float64, torch.float16):
        h = vectors().to(kind).requires_grad_()
        layer(h, labels).backward()
        assert h.grad.dtype == kind


def test_training_that_diverges_says_so() -> None:
    layer = OutputLayer(WIDTH, LABELS, optimizer="sgd", learning_rate=1000, threads=1)
    with pytest.raises(Diverged, match=r"^training diverged: .*learning rate 1000; try a smaller learning_rate$"):
        [layer(1e30 * vectors(), torch.arange(ROWS)) for _ in range(100)]


def test_wrong_options() -> None:
    for options, message in (
        ({"learning_rat": 1}, "there is no option of an output layer 'learning_rat'; did you mean 'learning_rate'?"),
        ({"hidden": 3}, "there is no option of an output layer 'hidden'"),
        ({"loss": "hinge"}, "loss: expected one of auto, softmax, sigmoid, not 'hinge'"),
        ({"weights": "int8"}, "weights: int8 is for prediction only; train with float32 or bf16"),
    ):
        with pytest.raises(ConfigError) as caught:
            OutputLayer(WIDTH, LABELS, **options)
        assert str(caught.value) == message
    with pytest.raises(ConfigError, match=r"^labels: expected a whole number from 1 to 2147483647, not 0$"):
        OutputLayer(WIDTH, 0)
    layer = OutputLayer(WIDTH, LABELS)
    with pytest.raises(ConfigError, match=r"^learning_rate: expected a number, 0 to 1000, not -1$"):
        layer.learning_rate = -1
    with pytest.raises(DataError, match=r"^k: expected 1 to 50, not 51$"):
        layer.topk(vectors(), 51)

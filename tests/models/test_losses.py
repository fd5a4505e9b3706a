"""The chunked loss against `torch.nn.functional.cross_entropy` of all logits at once."""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hf_attnzoo.models.losses import smoothed_cross_entropy, token_cross_entropy
from hf_attnzoo.models.wrapping import is_plain_linear

SIZE, VOCAB = 6, 11
LABELS = torch.tensor([[3, -100, 10, 0, -100], [-100, -100, -100, -100, -100], [1, 1, 7, 2, 10]])
COUNT = 8


def problem(bias=True, labels=LABELS, dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(4)
    head = nn.Linear(SIZE, VOCAB, bias=bias)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    hidden = torch.randn(*labels.shape, SIZE, generator=generator)
    return hidden.to(dtype).requires_grad_(), head.to(dtype)


def plain(hidden, head, labels=LABELS, divisor=None):
    logits = hidden.flatten(0, -2) @ head.weight.T
    if head.bias is not None:
        logits = logits + head.bias
    total = nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum")
    return total / ((labels != -100).sum() if divisor is None else divisor)


def gradients(loss, hidden, head):
    tensors = [hidden, *head.parameters()]
    for tensor in tensors:
        tensor.grad = None
    loss.backward()
    return [tensor.grad.clone() for tensor in tensors]


def assert_same(mine, other, atol=1e-12):
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=atol)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk_size", [1, 3, 8, 9, 512])
def test_values_and_gradients(bias, chunk_size):
    hidden, head = problem(bias)
    loss, expected = token_cross_entropy(hidden, head, LABELS, chunk_size=chunk_size), plain(hidden, head)
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-13)
    mine = gradients(loss, hidden, head)
    assert_same(mine, gradients(expected, hidden, head))
    assert (mine[0][LABELS == -100] == 0).all()


def test_a_value_by_hand():
    head = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0], [1.0]]))
    # logits (0, x): losses ln(1 + e^x) for word 0 and ln(1 + e^-x) for word 1
    hidden = torch.tensor([[0.0], [2.0], [math.log(3)]])
    loss = token_cross_entropy(hidden, head, torch.tensor([0, 1, 0]))
    expected = (math.log(2) + math.log(1 + math.exp(-2)) + math.log(4)) / 3
    assert loss.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("shape", [(15,), (5, 3), (1, 5, 3)])
def test_any_number_of_leading_dimensions(shape):
    hidden, head = problem()
    loss = token_cross_entropy(hidden.view(*shape, SIZE), head, LABELS.view(shape))
    torch.testing.assert_close(loss, plain(hidden, head), rtol=0, atol=1e-13)


@pytest.mark.parametrize("divisor", [5, 40, torch.tensor(5), torch.tensor(40)])
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_the_sum_is_divided_by(divisor, wrapped):
    hidden, head = problem()
    if wrapped:
        head.register_forward_hook(lambda *args: None)
    loss = token_cross_entropy(hidden, head, LABELS, num_items_in_batch=divisor, chunk_size=3)
    expected = plain(hidden, head, divisor=float(divisor))
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-13)
    assert_same(gradients(loss, hidden, head), gradients(expected, hidden, head))


def test_accumulated_parts_weigh_as_one_batch():
    hidden, head = problem()
    whole = gradients(plain(hidden, head), hidden, head)
    parts = sum(token_cross_entropy(hidden[row], head, LABELS[row], num_items_in_batch=COUNT) for row in range(3))
    assert_same(gradients(parts, hidden, head), whole)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("num_items_in_batch", [None, 7, torch.tensor(7)])
def test_nothing_to_predict(wrapped, num_items_in_batch):
    hidden, head = problem()
    if wrapped:
        head.register_forward_hook(lambda *args: None)
    loss = token_cross_entropy(hidden, head, torch.full((3, 5), -100), num_items_in_batch)
    assert loss.item() == 0
    for gradient in gradients(loss, hidden, head):
        assert (gradient == 0).all()


def test_what_needs_no_gradient_gets_none():
    for frozen in range(3):
        hidden, head = problem()
        tensors = [hidden, head.weight, head.bias]
        tensors[frozen].requires_grad_(False)
        expected = plain(hidden, head)
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        theirs = torch.autograd.grad(expected, wanted)
        token_cross_entropy(hidden, head, LABELS, chunk_size=3).backward()
        assert tensors[frozen].grad is None
        assert_same([tensor.grad for tensor in wanted], theirs)


def test_the_gradient_of_what_the_loss_is_used_for():
    hidden, head = problem()
    mine = gradients(token_cross_entropy(hidden, head, LABELS, chunk_size=3).exp() * -3, hidden, head)
    assert_same(mine, gradients(plain(hidden, head).exp() * -3, hidden, head), atol=1e-9)


def test_the_backward_pass_can_run_twice():
    hidden, head = problem()
    loss = token_cross_entropy(hidden, head, LABELS, chunk_size=3)
    loss.backward(retain_graph=True)
    once = [tensor.grad.clone() for tensor in (hidden, *head.parameters())]
    loss.backward()
    for tensor, first in zip((hidden, *head.parameters()), once, strict=True):
        assert torch.equal(tensor.grad, 2 * first)


def test_inputs_stay_as_they_are():
    hidden, head = problem()
    before = [tensor.detach().clone() for tensor in (hidden, head.weight, head.bias, LABELS)]
    token_cross_entropy(hidden, head, LABELS).backward()
    for tensor, value in zip((hidden, head.weight, head.bias, LABELS), before, strict=True):
        assert torch.equal(tensor, value)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients(context):
    hidden, head = problem()
    expected = plain(hidden, head).item()
    with context():
        loss = token_cross_entropy(hidden, head, LABELS, chunk_size=3)
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(expected, abs=1e-13)


def test_huge_logits_do_not_overflow():
    hidden, head = problem(scale=1e4)
    loss, expected = token_cross_entropy(hidden, head, LABELS), plain(hidden, head)
    torch.testing.assert_close(loss, expected)
    assert_same(gradients(loss, hidden, head), gradients(expected, hidden, head), atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", ["autocast", "weights"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_half_precision_is_close_and_its_loss_is_not_half(dtype, how, wrapped):
    hidden, head = problem(dtype=torch.float32)
    exact = plain(hidden, head)
    expected = gradients(exact, hidden, head)
    if how == "weights":
        hidden, head = problem(dtype=dtype)
    if wrapped:
        head.register_forward_hook(lambda *args: None)
    with torch.autocast("cpu", dtype=dtype, enabled=how == "autocast"):
        loss = token_cross_entropy(hidden, head, LABELS, chunk_size=3)
    assert loss.dtype == torch.float32
    tolerance = 0.03 if dtype == torch.bfloat16 else 0.004
    assert loss.item() == pytest.approx(exact.item(), abs=tolerance)
    for one, other in zip(gradients(loss, hidden, head), expected, strict=True):
        assert one.dtype == (dtype if how == "weights" else torch.float32)
        torch.testing.assert_close(one.float(), other, rtol=0, atol=tolerance)


class Adapter(nn.Linear):
    """An adapted head: its weight alone isn't what it computes."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.down, self.up = nn.Linear(SIZE, 2, bias=False), nn.Linear(2, VOCAB, bias=False)

    def forward(self, inputs):
        return super().forward(inputs) + self.up(self.down(inputs))


def test_an_adapted_head_is_called():
    torch.manual_seed(0)
    hidden, head = problem(dtype=torch.float32)[0], Adapter(SIZE, VOCAB)
    loss = token_cross_entropy(hidden, head, LABELS)
    expected = nn.functional.cross_entropy(head(hidden).flatten(0, 1), LABELS.flatten())
    torch.testing.assert_close(loss, expected)
    mine = gradients(loss, hidden, head)
    assert len(mine) == 5
    assert_same(mine, gradients(expected, hidden, head), atol=1e-6)


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_on_the_head_fires_and_may_change_what_it_returns(kind):
    hidden, head = problem()
    if kind == "register_forward_hook":
        head.register_forward_hook(lambda module, inputs, output: output * 2)
        bias = head.bias
    else:
        head.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
        bias = head.bias / 2
    logits = 2 * (hidden @ head.weight.T + bias)
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), LABELS.flatten())
    torch.testing.assert_close(token_cross_entropy(hidden, head, LABELS), expected, rtol=0, atol=1e-13)


def test_what_is_a_plain_linear():
    class Subclass(nn.Linear):
        pass

    assert is_plain_linear(nn.Linear(2, 2))
    assert not is_plain_linear(Subclass(2, 2))
    assert not is_plain_linear(nn.Identity())
    parametrised = nn.Linear(2, 2)
    nn.utils.parametrizations.weight_norm(parametrised)
    assert not is_plain_linear(parametrised)
    offloaded = nn.Linear(2, 2)
    offloaded._hf_hook = object()
    assert not is_plain_linear(offloaded)
    for kind in ("register_forward_hook", "register_forward_pre_hook"):
        hooked = nn.Linear(2, 2)
        handle = getattr(hooked, kind)(lambda *args: None)
        assert not is_plain_linear(hooked)
        handle.remove()
        assert is_plain_linear(hooked)


class LogitRows(TorchDispatchMode):
    """Counts matrix products, notes the rows of those that make logits, and the most rows that any logits have."""

    PRODUCTS = ("mm", "addmm", "addmm_", "linear", "bmm", "baddbmm", "baddbmm_")

    def __init__(self, vocab):
        super().__init__()
        self.vocab, self.all_products, self.products, self.most = vocab, 0, [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        is_product = func.overloadpacket.__name__ in self.PRODUCTS
        self.all_products += is_product
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.ndim and tensor.shape[-1] == self.vocab:
                rows = tensor.numel() // self.vocab
                self.most = max(self.most, rows)
                if is_product:
                    self.products.append(rows)
        return result


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_logits_exist_for_labelled_positions_only_and_a_chunk_at_a_time(grad, bias):
    vocab = 10_007
    head = nn.Linear(2, vocab, bias=bias)
    hidden = torch.randn(4, 50, 2, requires_grad=True)
    labels = torch.full((4, 50), -100)
    labels[:, :7] = torch.randint(vocab, (4, 7))
    with LogitRows(vocab) as seen, torch.set_grad_enabled(grad):
        loss = token_cross_entropy(hidden, head, labels, chunk_size=10)
        if grad:
            loss.backward()
    # 28 labelled positions
    assert seen.products == [10, 10, 8]
    assert seen.most == 10
    # Per chunk the logits and, only if anybody wants them, the gradients of what the head reads and of its weight.
    assert seen.all_products == (9 if grad else 3)


def test_traced_equals_eager():
    hidden, head = problem()
    compiled = torch.compile(token_cross_entropy, backend="eager", fullgraph=True)
    for labels, divisor in ((LABELS, None), (torch.full_like(LABELS, -100), None), (LABELS, torch.tensor(40))):
        loss, expected = compiled(hidden, head, labels, divisor), token_cross_entropy(hidden, head, labels, divisor)
        torch.testing.assert_close(loss, expected, rtol=0, atol=1e-13)
        assert_same(gradients(loss, hidden, head), gradients(expected, hidden, head))


class TestMixture:
    """`p = a softmax(head)[label] + b`, and the last two labels of the vocabulary are none of the head's."""

    WORDS = VOCAB - 2

    def parts(self):
        generator = torch.Generator().manual_seed(9)
        shape = (2, *LABELS.shape)
        return (-torch.rand(shape, generator=generator, dtype=torch.float64) * 4).requires_grad_()

    def plain(self, hidden, head, parts, divisor):
        total = 0
        for x, label, log_a, log_b in zip(hidden.flatten(0, 1), LABELS.flatten(), *parts.flatten(1), strict=True):
            if label == -100:
                continue
            probabilities = (head.weight[: self.WORDS] @ x + head.bias[: self.WORDS]).exp()
            generated = probabilities[label] / probabilities.sum() if label < self.WORDS else 0
            total = total - torch.log(log_a.exp() * generated + log_b.exp())
        return total / divisor

    @pytest.mark.parametrize("wrapped", [False, True])
    @pytest.mark.parametrize("chunk_size", [1, 3, 512])
    @pytest.mark.parametrize("divisor", [None, 40])
    def test_values_and_gradients(self, wrapped, chunk_size, divisor):
        hidden, head = problem()
        if wrapped:
            head.register_forward_hook(lambda module, args, output: None)
        mine, others = self.parts(), self.parts()
        loss = token_cross_entropy(hidden, head, LABELS, divisor, chunk_size, (mine[0], mine[1]), self.WORDS)
        expected = self.plain(hidden, head, others, divisor or COUNT)
        assert (LABELS >= self.WORDS).any()
        torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
        assert_same(gradients(loss, hidden, head), gradients(expected, hidden, head))
        torch.testing.assert_close(mine.grad, others.grad, rtol=0, atol=1e-12)

    def test_a_value_by_hand(self):
        head = nn.Linear(1, 3, bias=False)
        with torch.no_grad():
            head.weight.zero_()
        hidden, labels = torch.zeros(3, 1), torch.tensor([0, 2, 1])
        share, other = torch.tensor([0.5, 0.5, 1.0]).log(), torch.tensor([0.25, 0.5, 1e-38]).log()
        # Two words share the head's half: 1/4 + 1/4; the third is none of its; all by the head: 1/2
        loss = token_cross_entropy(hidden, head, labels, mixture=(share, other), num_words=2)
        assert loss.item() == pytest.approx(math.log(2), abs=1e-6)

    def test_nothing_to_predict(self):
        hidden, head = problem()
        parts = self.parts()
        labels = torch.full_like(LABELS, -100)
        loss = token_cross_entropy(hidden, head, labels, mixture=(parts[0], parts[1]), num_words=self.WORDS)
        assert loss == 0
        assert not any(gradient.any() for gradient in gradients(loss, hidden, head))


class TestSmoothing:
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("divisor", [None, 5, torch.tensor(5)])
    @pytest.mark.parametrize("wrapped", [False, True])
    @pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
    def test_every_word_has_a_share(self, bias, divisor, wrapped, smoothing):
        hidden, head = problem(bias)
        logs = (hidden @ head.weight.T + (head.bias if bias else 0)).log_softmax(dim=-1)
        expected = 0
        for row, column in (LABELS != -100).nonzero().tolist():
            shares = torch.full((VOCAB,), smoothing / VOCAB, dtype=torch.float64)
            shares[LABELS[row, column]] += 1 - smoothing
            expected = expected - (shares * logs[row, column]).sum() / (COUNT if divisor is None else 5)
        if wrapped:
            head.register_forward_hook(lambda module, inputs, output: None)
        loss = smoothed_cross_entropy(hidden, head, LABELS, smoothing, divisor)
        torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
        assert_same(gradients(loss, hidden, head), gradients(expected, hidden, head))

    def test_nothing_to_predict_is_no_loss(self):
        hidden, head = problem()
        loss = smoothed_cross_entropy(hidden, head, torch.full_like(LABELS, -100), 0.1)
        assert loss == 0
        assert all((gradient == 0).all() for gradient in gradients(loss, hidden, head))

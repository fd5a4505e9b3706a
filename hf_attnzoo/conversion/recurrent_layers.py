"""PyTorch's recurrent layers, which JoeyNMT and OpenNMT-py are made of, as the layers of luong.

They are the same by other names: gates stand in the same order on both sides.
"""

from torch import Tensor

from .checkpoints import Weights

_PARAMETERS = {
    "input_proj.weight": "weight_ih",
    "input_proj.bias": "bias_ih",
    "cell.hidden_proj.weight": "weight_hh",
    "cell.hidden_proj.bias": "bias_hh",
}


def take_encoder(weights: Weights, layers: int, bidirectional: bool) -> dict[str, Tensor]:
    """Take `encoder.rnn`, an `nn.LSTM` or `nn.GRU`.

    Args:
        weights: where it is.
        layers: how many layers it has.
        bidirectional: whether it reads in both directions.

    Returns:
        The parameters of our encoder's layers, by their names in a model with a head.

    Raises:
        ValueError: naming a parameter that is not there.
    """
    taken = {}
    for layer in range(layers):
        for direction, suffix in (("forward", ""), ("backward", "_reverse"))[: 1 + bidirectional]:
            ours = f"model.encoder.layers.{layer}.{direction}_rnn.rnn"
            for mine, theirs in _PARAMETERS.items():
                taken[f"{ours}.{mine}"] = weights.take(f"encoder.rnn.{theirs}_l{layer}{suffix}")
    return taken


def take_decoder(
    weights: Weights, layers: int, embedding_size: int, input_feeding: bool, pattern: str = "decoder.rnn.{}_l{}"
) -> dict[str, Tensor]:
    """Take `decoder.rnn`, whose first layer may read h~ beside the word.

    Args:
        weights: where it is.
        layers: how many layers it has.
        embedding_size: of a word vector, which stands before h~.
        input_feeding: whether there is h~.
        pattern: name of a parameter, with room for what it is and for the number of its layer.

    Returns:
        The parameters of our decoder's layers, by their names in a model with a head.

    Raises:
        ValueError: naming a parameter that is not there.
    """
    taken = {}
    for layer in range(layers):
        for mine, theirs in _PARAMETERS.items():
            taken[f"model.decoder.layers.{layer}.rnn.{mine}"] = weights.take(pattern.format(theirs, layer))
    if input_feeding:
        first = "model.decoder.layers.0.rnn.input_proj.weight"
        both = taken[first]
        taken[first], taken["model.decoder.feed_proj.weight"] = both[:, :embedding_size], both[:, embedding_size:]
    return taken

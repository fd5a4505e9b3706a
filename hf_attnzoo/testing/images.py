"""The checks of models that write texts about pictures; most are those of all encoder-decoders."""

import copy
import math

import torch
from transformers import PreTrainedModel

from .batches import (
    assert_close,
    assert_equal_gradients,
    loss_and_gradients,
    ragged_batch,
)
from .contract import assert_refused


def check_image_encoder_outputs(model: PreTrainedModel) -> None:
    """Annotations made beforehand, and word vectors in place of ids, give what pictures and ids give."""
    pixel_values, labels = ragged_batch(model)
    encoded = model.get_encoder()(pixel_values=pixel_values)
    before = encoded.last_hidden_state.clone()
    expected = model(pixel_values=pixel_values, labels=labels).logits
    for given in (encoded, (encoded[0],)):
        assert_close(model(encoder_outputs=given, labels=labels).logits, expected)
    ids = model.prepare_decoder_input_ids_from_labels(labels)
    embeds = model.get_decoder_input_embeddings()(ids)
    assert_close(model(pixel_values=pixel_values, decoder_inputs_embeds=embeds, labels=labels).logits, expected)
    for options in ({}, {"num_beams": 3}, {"num_beams": 3, "num_return_sequences": 3}):
        plain = model.generate(pixel_values=pixel_values, max_new_tokens=6, **options)
        assert torch.equal(model.generate(encoder_outputs=encoded, max_new_tokens=6, **options), plain)
        assert torch.equal(model.generate(pixel_values, max_new_tokens=6, **options), plain)
    assert torch.equal(encoded.last_hidden_state, before)


def check_image_outputs(model: PreTrainedModel) -> None:
    """Hidden states and attention come as asked for, one weight for every place of `grid_size`, in generation too."""
    pixel_values, labels = ragged_batch(model)
    places = math.prod(model.grid_size)
    output = model(pixel_values=pixel_values, labels=labels, output_attentions=True, output_hidden_states=True)
    assert output.encoder_last_hidden_state.shape[:2] == (3, places)
    assert torch.equal(output.encoder_last_hidden_state, output.encoder_hidden_states[-1])
    assert all(states.shape[:2] == (3, 5) for states in output.decoder_hidden_states)
    (attention,) = output.cross_attentions
    assert attention.shape == (3, 1, 5, places)
    assert (attention >= 0).all()
    assert_close(attention.sum(-1), torch.ones(3, 1, 5))
    options = {"max_new_tokens": 4, "suppress_tokens": [model.config.eos_token_id]}
    options |= {"output_attentions": True, "return_dict_in_generate": True}
    for beams in (1, 2):
        written = model.generate(pixel_values, num_beams=beams, **options)
        assert len(written.cross_attentions) == 4
        assert all(step[0].shape == (3 * beams, 1, 1, places) for step in written.cross_attentions)
    greedy = model.generate(pixel_values, **options)
    read = model(pixel_values=pixel_values, decoder_input_ids=greedy.sequences[:, :-1], output_attentions=True)
    steps = torch.cat([step[0] for step in greedy.cross_attentions], dim=2)
    assert_close(steps, read.cross_attentions[0])


def check_image_refusals(model: PreTrainedModel) -> None:
    """Pictures of a wrong shape or kind are refused with the argument, the value and the limit, and so are labels."""
    pixel_values, labels = ragged_batch(model)
    config = model.config
    channels, side = config.num_channels, config.image_size
    limit = f"(batch, {channels}, {side}, {side})"
    wrong = {
        "cropped": pixel_values[:, :, 1:],
        "narrow": pixel_values[..., 1:],
        "grey": torch.cat([pixel_values, pixel_values[:, :1]], dim=1),
        "single": pixel_values[0],
        "none": pixel_values[:0],
        "transposed": pixel_values.movedim(1, -1),
    }
    for pixels in wrong.values():
        for call in (
            lambda pixels=pixels: model(pixel_values=pixels, labels=labels),
            lambda pixels=pixels: model.generate(pixels, max_new_tokens=2),
        ):
            assert_refused(call, "pixel_values", limit, str(tuple(pixels.shape)))
    bytes_ = (pixel_values * 255).to(torch.uint8)
    assert_refused(lambda: model(pixel_values=bytes_, labels=labels), "pixel_values", "torch.uint8")
    assert_refused(lambda: model(labels=labels), "pixel_values", "encoder_outputs")
    assert_refused(lambda: model(pixel_values=pixel_values[:2], labels=labels), "2", "3")
    size = config.vocab_size
    assert_refused(lambda: model(pixel_values=pixel_values, labels=labels.abs() + size), "labels", str(size - 1))
    assert_refused(lambda: model(pixel_values=pixel_values, labels=labels[:, :0]), "labels", "(3, 0)")


def check_training_objective(model: PreTrainedModel) -> None:
    """What training adds to the cross-entropy of captions adds up over the parts of a batch, gradients too, and is
    nothing for a caption without labels."""
    model = copy.deepcopy(model).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if hasattr(model.config, "expected_attention_rate"):
        # Nothing is sampled.
        model.config.expected_attention_rate = 1.0
    pixel_values, labels = ragged_batch(model)
    loss, gradients = loss_and_gradients(model, pixel_values=pixel_values, labels=labels)
    count = (labels != -100).sum()
    parts = []
    for row in range(3):
        one, scored = slice(row, row + 1), labels[row] != -100
        parts.append(
            loss_and_gradients(
                model, pixel_values=pixel_values[one], labels=labels[one, scored], num_items_in_batch=count
            )
        )
    assert_close(sum(part[0] for part in parts), loss, 1e-4)
    assert_equal_gradients(gradients, {name: sum(part[1][name] for part in parts) for name in gradients}, 1e-4)
    more = torch.cat([pixel_values, pixel_values[:1]]), torch.cat([labels, torch.full_like(labels[:1], -100)])
    again, with_empty = loss_and_gradients(model, pixel_values=more[0], labels=more[1])
    assert_close(again, loss)
    assert_equal_gradients(with_empty, gradients, 1e-4)

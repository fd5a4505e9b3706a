"""Images and captions all the way through `Trainer`."""

import torch
from transformers import Trainer, TrainingArguments

from hf_attnzoo import (
    ShowAttendTellConfig,
    ShowAttendTellForConditionalGeneration,
    ShowAttendTellImageProcessor,
    ShowAttendTellProcessor,
    train_tokenizer,
)
from hf_attnzoo.data import CaptionCollator, load_caption_source


def test_trainer_reads_rows_as_they_are(tmp_path):
    rows = load_caption_source("shapes", "train", size=12, image_size=32)
    tokenizer = train_tokenizer("word", rows["caption"])
    processor = ShowAttendTellProcessor(ShowAttendTellImageProcessor(size=32), tokenizer)
    torch.manual_seed(0)
    model = ShowAttendTellForConditionalGeneration(
        ShowAttendTellConfig.from_preset("tiny", vocab_size=len(tokenizer), doubly_stochastic_weight=0.0)
    )
    batch = CaptionCollator(processor)(list(rows))
    with torch.no_grad():
        before = model.eval()(**batch).loss.item()
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=30,
        per_device_train_batch_size=6,
        learning_rate=0.02,
        remove_unused_columns=False,
        dataloader_num_workers=2,
        dataloader_persistent_workers=True,
        label_smoothing_factor=0.1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    collator = CaptionCollator(processor, model)
    trainer = Trainer(model, arguments, collator, train_dataset=rows, eval_dataset=rows, processing_class=processor)
    trainer.train()
    with torch.no_grad():
        assert model.eval()(**batch).loss.item() < 0.6 * before
    assert trainer.predict(rows).predictions[0].shape[:2] == batch["labels"].shape
    trainer.save_model(tmp_path / "saved")
    assert ShowAttendTellProcessor.from_pretrained(tmp_path / "saved")(text=rows["caption"][:1])["labels"]

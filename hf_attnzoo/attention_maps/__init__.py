"""Attention as a picture: capture what a model attends to, look at it as an array, draw it.

```python
from hf_attnzoo.attention_maps import attention_map

attention_map(model, tokenizer, "5 March 2021").plot("map.png")
attention_map(captioner, processor, "photo.jpg").overlay("words.png")
attention_map(bert, tokenizer, "the cat sat on the mat").to_html("heads.html")
```
"""

from .analysis import HeadSummary
from .capture import attention_map, attention_rows, source_tokens
from .encoder_maps import question_attention_map, summary_attention_map
from .image_maps import ImageAttentionMap, find_peak, upsample
from .maps import AttentionMap
from .overlay import plot_overlay, plot_overlays
from .plotting import plot_grid, save_figure

__all__ = [
    "attention_map",
    "AttentionMap",
    "HeadSummary",
    "ImageAttentionMap",
    "plot_grid",
    "plot_overlay",
    "plot_overlays",
    "summary_attention_map",
    "question_attention_map",
    "attention_rows",
    "source_tokens",
    "upsample",
    "find_peak",
    "save_figure",
]

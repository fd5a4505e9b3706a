"""Attention as a picture: capture what a model attends to, look at it as an array, draw it.

```python
from hf_attnzoo.attention_maps import attention_map

attention_map(model, tokenizer, "5 March 2021").plot("map.png")
```
"""

from .capture import attention_map, source_tokens
from .maps import AttentionMap
from .plotting import plot_grid, save_figure

__all__ = ["attention_map", "AttentionMap", "plot_grid", "source_tokens", "save_figure"]

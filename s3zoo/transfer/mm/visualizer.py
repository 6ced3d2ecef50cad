"""mmseg's visualizer for a model with classes of its own; the `config.py` of an exported segmenter names it."""

from typing import Any

from mmseg.registry import VISUALIZERS
from mmseg.visualization import SegLocalVisualizer


@VISUALIZERS.register_module()
class OwnClassesVisualizer(SegLocalVisualizer):
    """Shows the model's classes unless others are asked for: mmseg's inferencer asks for none, and its visualizer then
    takes Cityscapes'."""

    def __init__(self, name: str = "visualizer", classes: Any = None, palette: Any = None, **kwargs: Any) -> None:
        self.own = (classes, palette)
        super().__init__(name, **kwargs)

    def set_dataset_meta(self, classes: Any = None, palette: Any = None, dataset_name: str | None = None) -> None:
        if not (classes or palette or dataset_name):
            classes, palette = self.own
        super().set_dataset_meta(classes, palette, dataset_name)

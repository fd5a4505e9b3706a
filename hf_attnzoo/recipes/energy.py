"""The energy that a training takes, as codecarbon estimates it: without the network, and without files."""

import dataclasses
import logging
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ..hub import EnergyEstimate
from .schema import TrainingSection

logger = logging.getLogger(__name__)

# codecarbon's modes and classes -> how it has the energy. `{}`: watts at full load.
_HOW = {
    "intel_rapl": "measured by RAPL",
    "cpu_load": "from the load of its cores and an assumed {:g} W at full load",
    "constant": "an assumed half of {:g} W",
    "NvidiaGPUDevice": "measured by NVML",
    "AMDGPUDevice": "measured by AMD SMI",
    "AppleSiliconChip": "measured by powermetrics",
}
_PARTS = {"cpu": "processor", "gpu": "GPU", "ram": "memory"}

# What codecarbon isn't told it takes from files in the home and from the environment. Watts and numbers of GPUs may
# come from there, not what sends the estimate somewhere or makes it another one.
_UNSET = ("emissions_endpoint", "region", "cloud_provider", "cloud_region", "country_2letter_iso_code")
_UNSET += ("force_carbon_intensity_g_co2e_kwh", "rapl_include_dram", "rapl_prefer_psys")


def check_energy(section: TrainingSection) -> None:
    """Refuse `training.energy` where it can't be had.

    Args:
        section: of the recipe.

    Raises:
        ValueError: if codecarbon isn't installed or doesn't know the country, or the run is spread over machines.
    """
    if not section.energy:
        return
    if find_spec("codecarbon") is None:
        raise ValueError("training.energy=True takes the package codecarbon: pip install 'hf-attnzoo[energy]'")
    processes = os.environ.get("WORLD_SIZE", "1")
    if os.environ.get("LOCAL_WORLD_SIZE", processes) != processes:
        raise ValueError("training.energy=True is for one machine, and this run is on several: leave it out")
    if section.energy_country is not None:
        from codecarbon.input import DataSource

        if section.energy_country not in DataSource().get_global_energy_mix_data():
            raise ValueError(
                f"training.energy_country={section.energy_country!r} is no country that codecarbon knows by the three "
                "letters of ISO 3166, such as FRA"
            )


class EnergyMeter(TrainerCallback, ExportableState):
    """Estimates what the whole machine takes while it trains, other programs on it included.

    The first process alone does so, for all processes of the machine. The estimate is kept in the checkpoints: a run
    that goes on from one adds to it, and what a killed run took after its last checkpoint is lost.

    Args:
        country: where the machine is, for its emissions. None: these are not told.
    """

    def __init__(self, country: str | None = None):
        self.country = country
        # An `EnergyEstimate` as a dict: of the runs before and this one. None: unknown.
        self.estimate: dict[str, Any] | None = None
        self._tracker: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to measure.

        Raises:
            ValueError: if codecarbon can't, or knows nothing of the accelerator.
        """
        if not state.is_world_process_zero or (state.global_step > 0 and self.estimate is None):
            # What is lost once can't be made up for.
            return
        self._before = self.estimate or {"parts": {}, "grams": 0.0}
        self._tracker, self._words = open_tracker(self.country, args.output_dir, self._take)
        if self.state()["attributes"]["estimate"] is None:
            raise ValueError("training.energy=True: codecarbon can't measure on this machine")
        if args.device.type != "cpu" and "gpu" not in self._words:
            raise ValueError(f"training.energy=True: codecarbon can't read the energy of the device {args.device}")

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        if self._tracker is not None:
            self.estimate = None
            # It swallows its own errors.
            self._tracker.flush()
            if self.estimate is None:
                logger.warning("codecarbon could not measure: there is no estimate of the energy up to here")
        return {"args": {"country": self.country}, "attributes": {"estimate": self.estimate}}

    def close(self) -> None:
        """Stop measuring, however training has ended."""
        if self._tracker is not None:
            self._tracker.stop()
            self._tracker = None

    def _take(self, total: Any) -> None:
        """Add codecarbon's totals since it was begun to the estimate of the runs before."""
        parts = dict(self._before["parts"])
        for part, words in self._words.items():
            parts[words] = parts.get(words, 0.0) + getattr(total, f"{part}_energy")
        place = (None, None)
        if self.country is not None:
            # It has kilograms.
            place = (total.country_name, self._before["grams"] + 1000 * total.emissions)
        self.estimate = dataclasses.asdict(EnergyEstimate(parts, total.codecarbon_version, *place))


def energy_of(state: TrainerState) -> EnergyEstimate | None:
    """The estimate in the last checkpoint, which a run ends with.

    Args:
        state: of a trainer, or from `read_state`.
    """
    saved = state.stateful_callbacks.get(EnergyMeter.__name__, {}).get("attributes", {}).get("estimate")
    return None if saved is None else EnergyEstimate(**saved)


def open_tracker(country: str | None, folder: str, take: Callable[[Any], None]) -> tuple[Any, dict[str, str]]:
    """A tracker of codecarbon that has begun, and has no way to the network.

    Args:
        country: three letters of ISO 3166, or None.
        folder: for files that codecarbon works with on some machines.
        take: what its totals are given to at every `flush`.

    Returns:
        The tracker, and how the energy of its parts is had: of `cpu`, `ram` and, where there is one, `gpu`.
    """
    from codecarbon import OfflineEmissionsTracker
    from codecarbon.output_methods.base_output import BaseOutput

    class Totals(BaseOutput):
        def out(self, total: Any, delta: Any) -> None:
            take(total)

    # Before it has read the level that it is given, it has things to tell.
    logging.getLogger("codecarbon").setLevel(logging.ERROR)
    tracker = OfflineEmissionsTracker(
        country_iso_code=country,
        output_dir=folder,
        output_methods=[],
        output_handlers=[Totals()],
        log_level="error",
        tracking_mode="machine",
        pue=1.0,
        # With None it would look for one under an older name.
        electricitymaps_api_token="",
        **dict.fromkeys(_UNSET),
    )
    tracker.start()
    return tracker, dict(map(_words, tracker._hardware))


def _words(item: Any) -> tuple[str, str]:
    """Which part of an estimate a piece of codecarbon's hardware is, and how its energy is had."""
    kind = type(item).__name__
    part = getattr(item, "chip_part", kind).lower()
    if kind == "RAM":
        how = f"an assumed {item.total_power().W:g} W"
    elif kind == "CPU":
        how = _HOW.get(item._mode, f"by codecarbon's {item._mode}").format(item._tdp)
    elif kind == "GPU":
        kinds = sorted({type(device).__name__ for device in item.devices.devices})
        how = " and ".join(_HOW.get(name, f"by codecarbon's {name}") for name in kinds)
    else:
        how = _HOW.get(kind, f"by codecarbon's {kind}")
    return part, f"{_PARTS[part]}, {how}"

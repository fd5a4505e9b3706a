"""The energy that a training takes, as codecarbon estimates it: without the network, and without files."""

import dataclasses
import logging
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ..hub import EnergyEstimate
from .schema import TrainingSection

if TYPE_CHECKING:
    from codecarbon import OfflineEmissionsTracker
    from codecarbon.output_methods.emissions_data import EmissionsData

logger = logging.getLogger(__name__)

# Mode of codecarbon's processors -> how their energy is had. `{}`: watts at full load.
_MODES = {
    "intel_rapl": "measured by RAPL",
    "windows_emi": "measured by Windows' energy meter",
    "intel_power_gadget": "measured by Intel Power Gadget",
    "cpu_load": "from the load of its cores and an assumed {:g} W at full load",
    "constant": "an assumed half of {:g} W",
}
# Class of codecarbon's hardware -> what measures it.
_METERS = {
    "NvidiaGPUDevice": "NVML",
    "AMDGPUDevice": "AMD SMI",
    "AppleSiliconChip": "powermetrics",
    "Raspberry": "the board's power controller",
}


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
    that goes on from one goes on from its estimate, and what a killed run took after its last checkpoint is lost.

    Args:
        country: where the machine is, for its emissions. None: these are not told.
    """

    def __init__(self, country: str | None = None):
        self.country = country
        # `EnergyEstimate` as a dict: of runs before, and up to now. None: nothing is known.
        self.estimate: dict[str, Any] | None = None
        self._before: dict[str, Any] | None = None
        self._tracker: OfflineEmissionsTracker | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to measure.

        Raises:
            ValueError: if codecarbon can't, or knows nothing of the accelerator.
        """
        if not state.is_world_process_zero:
            return
        if state.global_step > 0 and self.estimate is None:
            logger.warning("the energy up to the checkpoint isn't known: the run has no estimate of it")
            return
        self._before = self.estimate
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

    def _take(self, total: "EmissionsData") -> None:
        """Add codecarbon's totals since the start to the estimate of the runs before."""
        before = self._before or {"parts": {}, "grams": 0.0}
        parts = dict(before["parts"])
        for part, words in self._words.items():
            parts[words] = parts.get(words, 0.0) + getattr(total, f"{part}_energy")
        estimate = EnergyEstimate(parts, total.codecarbon_version)
        if self.country is not None:
            grams = before["grams"] + 1000 * total.emissions
            estimate = dataclasses.replace(estimate, country=total.country_name, grams=grams)
        self.estimate = dataclasses.asdict(estimate)


def energy_of(state: TrainerState) -> EnergyEstimate | None:
    """The estimate in the last checkpoint, which a run ends with.

    Args:
        state: of a trainer, or from `read_state`.
    """
    saved = state.stateful_callbacks.get(EnergyMeter.__name__, {}).get("attributes", {}).get("estimate")
    return None if saved is None else EnergyEstimate(**saved)


def open_tracker(
    country: str | None, folder: str, take: Callable[["EmissionsData"], None]
) -> tuple["OfflineEmissionsTracker", dict[str, str]]:
    """A tracker that has begun, and has no way to the network.

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
        def out(self, total: "EmissionsData", delta: "EmissionsData") -> None:
            take(total)

    # Before it has read the level that it is given, it has things to tell.
    logging.getLogger("codecarbon").setLevel(logging.ERROR)
    tracker = OfflineEmissionsTracker(
        country_iso_code=country,
        output_handlers=[Totals()],
        output_dir=folder,
        log_level="error",
        tracking_mode="machine",
        # What it isn't told here it takes from files in the home and from the environment: watts and numbers of GPUs
        # may come from there, nothing that sends the estimate anywhere or makes it another one.
        output_methods=[],
        api_call_interval=-1,
        emissions_endpoint=None,
        electricitymaps_api_token="",
        allow_multiple_runs=True,
        region=None,
        cloud_provider=None,
        cloud_region=None,
        country_2letter_iso_code=None,
        force_carbon_intensity_g_co2e_kwh=None,
        measure_power_secs=15,
        pue=1.0,
        rapl_include_dram=False,
        rapl_prefer_psys=False,
    )
    tracker.start()
    return tracker, {part: words for item in tracker._hardware for part, words in [_words(item)]}


def _words(item: Any) -> tuple[str, str]:
    """Which part of an estimate a piece of codecarbon's hardware is, and how its energy is had."""
    kind = type(item).__name__
    if kind == "RAM":
        return "ram", f"memory, an assumed {item.total_power().W:g} W"
    if kind == "GPU":
        devices = item.devices.devices
        meters = sorted({_METERS.get(type(device).__name__, "codecarbon") for device in devices})
        count = len(devices if item.gpu_ids is None else item.gpu_ids)
        return "gpu", f"{count} of {len(devices)} GPUs, measured by {' and '.join(meters)}"
    if kind == "CPU":
        how = _MODES.get(item._mode, f"by codecarbon's mode {item._mode}")
        return "cpu", f"processor, {how.format(item._tdp)}"
    part = item.chip_part.lower()
    name = {"cpu": "processor", "gpu": "GPU", "ram": "memory"}[part]
    return part, f"{name}, measured by {_METERS.get(kind, 'codecarbon')}"

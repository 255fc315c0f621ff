"""Energy: kilowatt-hours and CO2 of GPU-hours, from figures that the user states."""

from __future__ import annotations

from dataclasses import dataclass

from stabcli.errors import SettingError
from stabcli.units import GpuHours


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What a GPU draws, and what its power emits."""

    watts: float
    """Power of one GPU and its share of the host, in W."""
    load: float = 1.0
    """Mean share of ``watts`` that is drawn."""
    pue: float = 1.0
    """Power usage effectiveness of the building: all of its power / that of the machines.

    Source of the default: codecarbon 3.3.2, which assumes 1.0 as well.
    """
    gco2: float | None = None
    """Grams of CO2e per kWh; the world's mean was 475 (codecarbon 3.3.2, data of 2023)."""

    def kilowatt_hours(self, hours: GpuHours) -> float:
        """Return the energy of GPU-hours."""
        return hours * self.watts * self.load * self.pue / 1000

    def kilograms(self, hours: GpuHours) -> float | None:
        """Return the CO2e of GPU-hours in kg; None without ``gco2``."""
        return None if self.gco2 is None else self.kilowatt_hours(hours) * self.gco2 / 1000

    @property
    def assumption(self) -> str:
        """What the figures rest on, as a sentence."""
        carbon = f", {self.gco2:g} g CO2e per kWh" if self.gco2 is not None else ""
        bound = ": an upper bound, for no GPU draws its limit all the time" * (self.load == 1.0)
        return (
            f"energy: {self.watts:g} W a GPU, load {self.load:g}, PUE {self.pue:g}{carbon}{bound}"
        )


def parse_power(text: str) -> Power:
    """Read ``watts=700,load=0.8,pue=1.2,gco2=475``.

    Raises:
        SettingError: A key is unknown, a value is no positive number, or there are no watts.
    """
    values: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = (p.strip() for p in part.partition("="))
        if key not in ("watts", "load", "pue", "gco2"):
            raise SettingError(
                f"--energy {text}: no such key as {key!r}: one of watts, load, pue, gco2"
            )
        try:
            values[key] = float(value)
        except ValueError:
            values[key] = -1.0
        if not 0 < values[key] < float("inf"):
            raise SettingError(f"--energy {text}: {key} takes a positive number, not {value!r}")
    if "watts" not in values:
        raise SettingError(f"--energy {text}: no watts in it: write watts=700")
    return Power(**values)

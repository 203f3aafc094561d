"""How many neighbors a secure sum needs: the odds that a round fails, and that devices who collude expose another.

    python -m studies.fleet.secure_neighbours

A device's secrets are held by its neighbors on a random ring and itself. They are lost where fewer than the threshold
of these are left, and exposed where as many of its neighbors tell the server theirs. Both are hypergeometric tails,
summed over all devices, which bounds the odds that it happens to any.
"""

from __future__ import annotations

from scipy.stats import hypergeom

from kfl_fleet.secure import threshold_of

VANISH, COLLUDE, SHARE = 0.3, 0.2, 0.5
FLEETS = ((100, 50), (200, 60), (500, 100), (1000, 120))


def odds(devices: int, neighbours: int) -> tuple[float, float]:
    """That a round fails where devices vanish, and that some device is exposed where others collude; at most 1."""
    needed = threshold_of(SHARE, neighbours + 1)
    failing = hypergeom(devices, round(VANISH * devices), neighbours + 1).sf(neighbours + 1 - needed)
    exposed = hypergeom(devices - 1, round(COLLUDE * devices), neighbours).sf(needed - 1)
    return min(1.0, devices * float(failing)), min(1.0, devices * float(exposed))


def main() -> None:
    print(f"threshold {SHARE:g}; {VANISH:.0%} vanish, {COLLUDE:.0%} collude")
    print(f"{'devices':>8}{'neighbors':>12}{'a round fails':>15}{'one is exposed':>16}")
    for devices, neighbours in FLEETS:
        failing, exposed = odds(devices, neighbours)
        print(f"{devices:>8,}{neighbours:>12}{failing:>15.0e}{exposed:>16.0e}")


if __name__ == "__main__":
    main()

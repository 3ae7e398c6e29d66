"""The bundled model, and the adapters that were trained for it."""

from pathlib import Path

ADAPTERS = Path(__file__).parent / "adapters"
"""A folder of adapters, each in a directory of its name: `Engine(adapters={"listings": ADAPTERS / "listings"})`."""

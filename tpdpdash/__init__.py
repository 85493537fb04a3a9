"""tpdpdash: plan, launch and watch parallel training. Import the room you need; nothing is loaded here."""

__version__ = "0.1.0"

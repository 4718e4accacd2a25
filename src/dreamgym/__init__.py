"""DreamGym: train LLM agents by reinforcement learning on synthesised experience."""

__version__ = "0.1.0"

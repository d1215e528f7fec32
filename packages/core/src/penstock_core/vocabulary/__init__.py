"""The words of the core: commands, facts, effects, errors and the ports of the shells."""

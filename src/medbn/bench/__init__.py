"""The test bench: what the paper measured, measured again."""

"""The run folder: one package that writes it and reads it, safely."""

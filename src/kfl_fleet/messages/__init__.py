"""What travels between server and devices: tables with bounds, arrays in frames, and refusals with codes."""

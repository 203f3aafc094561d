"""The problem that `kfl schedule --example` prints, as JSON and as CSV: the same seven meters in one narrow cell."""

from __future__ import annotations

JSON = """{
  "bandwidth_hz": 180000,
  "noise_dbm_per_hz": -171,
  "deadline_s": 20,
  "rounds": 100,
  "round": 12,
  "max_power_dbm": 23,
  "payload_bits": 20480,
  "flops": 1.65e9,
  "flops_per_cycle": 1,
  "power_coefficient": 3.6e-28,
  "budget_j": 2,
  "devices": [
    {"id": "hall", "gain_db": -118, "samples": 600, "cpu_hz": 192e6, "spent_j": 0.54, "queue_j": 0.3},
    {"id": "roof", "gain_db": -109, "samples": 400, "cpu_hz": 160e6, "spent_j": 0.34, "queue_j": 0.1},
    {"id": "cellar-1", "gain_db": -136, "samples": 600, "cpu_hz": 128e6, "spent_j": 0.44, "queue_j": 0.2},
    {"id": "cellar-2", "gain_db": -146, "samples": 60, "cpu_hz": 192e6, "spent_j": 1.14, "queue_j": 0.9},
    {"id": "street", "gain_db": -124, "samples": 300, "payload_bits": 81920, "max_power_dbm": 14,
     "compute_time_s": 6, "compute_energy_j": 0.004, "deadline_s": 15,
     "budget_j": 1, "battery_j": 0.7, "queue_j": 0.18},
    {"id": "yard", "available": false, "samples": 500, "cpu_hz": 160e6},
    {"id": "tunnel", "gain_db": -121, "samples": 600, "cpu_hz": 80e6}
  ]
}
"""

CSV = """# bandwidth_hz = 180000
# noise_dbm_per_hz = -171
# deadline_s = 20
# rounds = 100
# round = 12
# max_power_dbm = 23
# payload_bits = 20480
# flops = 1.65e9
# flops_per_cycle = 1
# power_coefficient = 3.6e-28
# budget_j = 2
id,gain_db,samples,cpu_hz,spent_j,queue_j,payload_bits,max_power_dbm,compute_time_s,compute_energy_j,\
deadline_s,budget_j,battery_j,available
hall,-118,600,192e6,0.54,0.3,,,,,,,,
roof,-109,400,160e6,0.34,0.1,,,,,,,,
cellar-1,-136,600,128e6,0.44,0.2,,,,,,,,
cellar-2,-146,60,192e6,1.14,0.9,,,,,,,,
street,-124,300,,,0.18,81920,14,6,0.004,15,1,0.7,
yard,,500,160e6,,,,,,,,,,false
tunnel,-121,600,80e6,,,,,,,,,,
"""

EXAMPLES = {"json": JSON, "csv": CSV}

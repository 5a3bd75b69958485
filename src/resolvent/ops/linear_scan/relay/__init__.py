"""A scan in one launch for too few rows to fill the device: chunks of time pass their states on."""

"""One scan in one launch, where rows are too few to fill the device: chunks of time that hand their states on."""

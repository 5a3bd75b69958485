"""The stages of a cell after training: attacks, certificates, attribution, analysis."""

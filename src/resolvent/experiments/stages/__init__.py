"""What a cell does after training: attacks, certificates, attribution, analysis."""

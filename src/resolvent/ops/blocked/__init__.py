"""The blocked state-space pass: matrix products inside blocks of time, a state carried between them."""

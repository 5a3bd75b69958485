"""Operations, one folder each: the operation as called by layers, its slow reference, and its kernels."""

"""Operations, one folder each: the operation as layers call it, its slow reference, and its kernels."""

"""Where runs live: folders and object stores, locks and claims."""

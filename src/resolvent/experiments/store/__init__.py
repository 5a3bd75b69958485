"""Where runs live: folders and their locks, object stores."""

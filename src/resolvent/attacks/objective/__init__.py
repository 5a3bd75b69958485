"""What an attack climbs, with its gradient."""

"""Task sets: where tasks come from. Each module is one source; importing this loads none."""

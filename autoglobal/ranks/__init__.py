"""Messages between ranks: collectives, agreement, and the watchdog that ends a wait."""
